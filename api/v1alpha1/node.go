package v1alpha1

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// NodeHealthOf returns the verdict that the node's daemon wrote; nil: there is none. An unreadable annotation is an error.
func NodeHealthOf(node *corev1.Node) (*NodeHealth, error) {
	return decodeAnnotation[NodeHealth](node, AnnotationHealth)
}

// NodeOutageOf returns the controller's decision about a node; nil: there is none. An unreadable annotation is an error.
func NodeOutageOf(node *corev1.Node) (*NodeOutage, error) {
	return decodeAnnotation[NodeOutage](node, AnnotationOutage)
}

// NodeEvictionOf returns the user's request to move pods off a node, ended or not; nil: there is none. An unreadable or incomplete
// annotation is an error.
func NodeEvictionOf(node *corev1.Node) (*NodeEviction, error) {
	e, err := decodeAnnotation[NodeEviction](node, AnnotationEvict)
	if e != nil && (e.At.IsZero() || e.Until.IsZero() || e.Reason == "" || e.Pod != nil && e.Pod.UID == "") {
		return nil, fmt.Errorf("annotation %s of node %s needs reason, at, until and, with pod, its uid: remove it, and use kubectl holdfast evict",
			AnnotationEvict, node.Name)
	}
	return e, err
}

// NodeSuspicionsOf returns the suspicions of gangs, ended or not. An unreadable annotation is an error.
func NodeSuspicionsOf(node *corev1.Node) ([]NodeSuspicion, error) {
	list, err := decodeAnnotation[[]NodeSuspicion](node, AnnotationSuspicions)
	if list == nil || err != nil {
		return nil, err
	}
	return *list, nil
}

// NodePassesOf returns the node checks that a node passed. An unreadable annotation is an error.
func NodePassesOf(node *corev1.Node) ([]NodePass, error) {
	list, err := decodeAnnotation[[]NodePass](node, AnnotationPasses)
	if list == nil || err != nil {
		return nil, err
	}
	return *list, nil
}

func decodeAnnotation[T any](node *corev1.Node, key string) (*T, error) {
	text, ok := node.Annotations[key]
	if !ok {
		return nil, nil
	}
	value := new(T)
	if err := json.Unmarshal([]byte(text), value); err != nil {
		return nil, fmt.Errorf("annotation %s of node %s cannot be read: %w", key, node.Name, err)
	}
	return value, nil
}
