package plugin

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang/status"
	"holdfast.dev/holdfast/internal/eventually"
)

// An answer for which no Gang exists is written once the Gang is created. An answer that did not change is not written again. An answer for
// another Gang of the same name is written.
func TestAnswersAreWrittenOncePerGang(t *testing.T) {
	var gets, patches, absent atomic.Int32
	absent.Store(3)
	uid := "first"
	c := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(
		runtime.NewScheme(),
		map[schema.GroupVersionResource]string{v1alpha1.GroupVersion.WithResource("gangs"): "GangList"},
	)
	c.PrependReactor("get", "gangs", func(clienttesting.Action) (bool, runtime.Object, error) {
		gets.Add(1)
		if absent.Add(-1) >= 0 {
			return true, nil, apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("gangs").GroupResource(), "g")
		}
		u := &unstructured.Unstructured{}
		u.SetUID(types.UID(uid))
		return true, u, nil
	})
	c.PrependReactor("patch", "gangs", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patches.Add(1)
		var u unstructured.Unstructured
		if err := u.UnmarshalJSON(a.(clienttesting.PatchAction).GetPatch()); err != nil {
			return true, nil, err
		}
		if string(u.GetUID()) != uid {
			return true, nil, apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("gangs").GroupResource(), "g", fmt.Errorf("uid %s", u.GetUID()))
		}
		return true, &unstructured.Unstructured{Object: map[string]any{}}, nil
	})
	answer := status.Placed([]string{"a"})
	p := newPublisher(c, func(types.NamespacedName) (v1alpha1.PlacementStatus, bool, bool) { return answer, true, true })
	try := func() error { return p.publish(t.Context(), key("g")) }
	for range 3 {
		if try() == nil {
			t.Fatal("an answer without a Gang was given up")
		}
	}
	for range 3 {
		if err := try(); err != nil {
			t.Fatal(err)
		}
	}
	if patches.Load() != 1 || gets.Load() != 4 {
		t.Errorf("%d writes and %d reads, want 1 and 4", patches.Load(), gets.Load())
	}
	uid, answer = "second", status.Placed([]string{"b"})
	if try() == nil {
		t.Error("the answer was written to a Gang that is no more")
	}
	if err := try(); err != nil || patches.Load() != 3 {
		t.Errorf("the new Gang got no answer: %v after %d writes", err, patches.Load())
	}
}

// Callers do not wait for the publisher, whatever the API server does.
func TestCallersDoNotWaitForTheAPIServer(t *testing.T) {
	c := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(
		runtime.NewScheme(),
		map[schema.GroupVersionResource]string{v1alpha1.GroupVersion.WithResource("gangs"): "GangList"},
	)
	stuck, release := make(chan struct{}, 1), make(chan struct{})
	c.PrependReactor("get", "gangs", func(clienttesting.Action) (bool, runtime.Object, error) {
		select {
		case stuck <- struct{}{}:
		default:
		}
		<-release
		return true, nil, fmt.Errorf("released")
	})
	p := newPublisher(c, func(types.NamespacedName) (v1alpha1.PlacementStatus, bool, bool) {
		return status.Placed(nil), true, true
	})
	go p.run(t.Context())
	defer close(release)
	p.soon(key("g"))
	<-stuck
	done := make(chan struct{})
	go func() {
		for i := range 5000 {
			p.soon(key(fmt.Sprint(i)))
			p.eventually(key(fmt.Sprint(i)))
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(eventually.Timeout):
		t.Error("a caller waited for the API server")
	}
}
