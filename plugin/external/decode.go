package external

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

// informer watches an API and decodes its objects into their Go type. An object that does not decode stays unstructured: get refuses it,
// and the other objects are not affected.
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
