package translate

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// NodeHealth is the verdict that the daemon of a node wrote on it; nil: there is none.
func NodeHealth(node *corev1.Node) (*v1alpha1.NodeHealth, error) {
	return said[v1alpha1.NodeHealth](node, v1alpha1.AnnotationHealth)
}

// NodeOutage is what the controller decided about a node; nil: nothing.
func NodeOutage(node *corev1.Node) (*v1alpha1.NodeOutage, error) {
	return said[v1alpha1.NodeOutage](node, v1alpha1.AnnotationOutage)
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
