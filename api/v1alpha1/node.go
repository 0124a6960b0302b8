package v1alpha1

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// NodeHealthOf is the verdict that the daemon of a node wrote on it; nil: there is none.
func NodeHealthOf(node *corev1.Node) (*NodeHealth, error) {
	return said[NodeHealth](node, AnnotationHealth)
}

// NodeOutageOf is what the controller decided about a node; nil: nothing.
func NodeOutageOf(node *corev1.Node) (*NodeOutage, error) {
	return said[NodeOutage](node, AnnotationOutage)
}

func said[T any](node *corev1.Node, key string) (*T, error) {
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
