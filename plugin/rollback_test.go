package plugin

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

// A deletion is retried for as long as an API server takes to restart, and not for ever.
func TestHowLongADeletionIsTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, tries := time.Now(), 0
		err := wait.ExponentialBackoffWithContext(
			t.Context(),
			rollbackBackoff,
			func(context.Context) (bool, error) { tries++; return false, nil },
		)
		if took := time.Since(began); err == nil || tries != rollbackBackoff.Steps || took < 20*time.Second || took > 30*time.Second {
			t.Errorf("%d tries in %s, %v", tries, took, err)
		}
	})
}

// A pod of a Volcano Job is deleted once it has the mark with which no policy of the job acts on that, and not before.
func TestARollbackFiresNoPolicyOfAVolcanoJob(t *testing.T) {
	for _, c := range []struct{ owner, want string }{
		{"batch.volcano.sh/v1alpha1", "refused, marked, deleted"},
		{"batch/v1", "deleted"},
	} {
		s := &saboteur{spoils: map[string]string{"g-1": "b"}}
		w := newWorld(t, s.extras(), node("a", 2), node("b", 2))
		var mu sync.Mutex
		var done []string
		note := func(react func() (string, error)) func(clienttesting.Action) (bool, runtime.Object, error) {
			return func(a clienttesting.Action) (bool, runtime.Object, error) {
				if patch, ok := a.(clienttesting.PatchAction); ok && !strings.Contains(string(patch.GetPatch()), `"volcano.sh/job-version":"-1"`) {
					return false, nil, nil
				}
				mu.Lock()
				defer mu.Unlock()
				what, err := react()
				done = append(done, what)
				return err != nil, nil, err
			}
		}
		w.client.PrependReactor("delete", "pods", note(func() (string, error) { return "deleted", nil }))
		w.client.PrependReactor("patch", "pods/status", note(func() (string, error) {
			if len(done) == 0 {
				return "refused", errors.New("not now")
			}
			return "marked", nil
		}))
		// The first gets a node before the second finds none.
		s.onReserve = func(p *v1.Pod) {
			if p.Name == "g-1" {
				w.until("the first to be bound", func() bool { return w.where("g-0") != "" })
			}
		}
		for slot := range 2 {
			p := memberPod("g", slot, 2, 2)
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: c.owner, Kind: "Job", Name: "g", UID: "job", Controller: ptr.To(true)}}
			w.create(p)
		}
		w.until("the first to be rolled back", func() bool { return w.where("g-0") == "gone" })
		mu.Lock()
		if got := strings.Join(done, ", "); got != c.want {
			t.Errorf("a pod of %s: %s; want %s", c.owner, got, c.want)
		}
		mu.Unlock()
	}
}
