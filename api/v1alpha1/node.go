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
