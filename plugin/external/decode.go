package external

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

// informer watches an API and keeps its objects in their own type. One that does not fit the type is kept as it came:
// it is refused when it is asked for, and the others are not held up by it.
func (b *Book) informer(a *api) (cache.SharedIndexInformer, error) {
	informer := dynamicinformer.NewFilteredDynamicInformer(b.client, a.gvr, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	err := informer.SetTransform(func(obj any) (any, error) {
		u, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return obj, nil
		}
		u.SetManagedFields(nil)
		object := a.object()
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, object); err != nil {
			return u, nil
		}
		return object, nil
	})
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", a.gvr, err)
	}
	return informer, nil
}
