package harness

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/membership"
	"holdfast.dev/holdfast/test/devcluster/layout"
)

// Shape is the state of a gang's members at one time, by slot.
type Shape struct {
	Generation  int64
	Assignments []Assignment
}

// Assignment is the running pod of one slot; empty if there is none.
type Assignment struct {
	Pod, UID, Node, Container string
	Restarts                  int32
}

// Gang reads a Gang from the API server.
func (w *World) Gang(ctx context.Context, namespace, name string) (*v1alpha1.Gang, error) {
	g := &v1alpha1.Gang{}
	if err := w.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, g); err != nil {
		return nil, fmt.Errorf("reading gang %s: %w", name, err)
	}
	return g, nil
}

// Members returns all pods of a gang: its members, and the replaced ones.
func (w *World) Members(ctx context.Context, namespace, gang string) (members, replaced []corev1.Pod, err error) {
	list := &corev1.PodList{}
	if err := w.client.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelGang: gang}); err != nil {
		return nil, nil, err
	}
	for _, p := range list.Items {
		if membership.Replaced(&p) {
			replaced = append(replaced, p)
		} else {
			members = append(members, p)
		}
	}
	return members, replaced, nil
}

// Shape returns the present state of a gang's members.
func (w *World) Shape(ctx context.Context, g *v1alpha1.Gang) (Shape, error) {
	s := Shape{Assignments: make([]Assignment, g.Spec.Members)}
	if g.Status.Run != nil {
		s.Generation = g.Status.Run.Generation
	}
	members, _, err := w.Members(ctx, g.Namespace, g.Name)
	for _, p := range members {
		i, ok := membership.GangSlot(&p)
		if !ok || i >= len(s.Assignments) || p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning ||
			len(p.Status.ContainerStatuses) == 0 {
			continue
		}
		c := p.Status.ContainerStatuses[0]
		s.Assignments[i] = Assignment{p.Name, string(p.UID), p.Spec.NodeName, c.ContainerID, c.RestartCount}
	}
	return s, err
}

// On returns the slots whose pods are on a node.
func (s Shape) On(node string) (slots []int) {
	for i, a := range s.Assignments {
		if a.Node == node {
			slots = append(slots, i)
		}
	}
	return slots
}

// Became returns an error unless one recovery replaced the pods of exactly these slots, all others kept their containers, and no container
// was restarted.
func (s Shape) Became(after Shape, replaced ...int) error {
	var errs []error
	if after.Generation != s.Generation+1 {
		errs = append(errs, fmt.Errorf("generation %d became %d", s.Generation, after.Generation))
	}
	for i, is := range after.Assignments {
		was := s.Assignments[i]
		switch {
		case !slices.Contains(replaced, i) && was != is:
			errs = append(errs, fmt.Errorf("slot %d was to stay as it is: %+v became %+v", i, was, is))
		case slices.Contains(replaced, i) && was.UID == is.UID:
			errs = append(errs, fmt.Errorf("pod %s of slot %d was not replaced", is.Pod, i))
		}
		if is.Restarts != 0 {
			errs = append(errs, fmt.Errorf("the container of %s was restarted %d times", is.Pod, is.Restarts))
		}
	}
	return errors.Join(errs...)
}

// Says returns the message of a Gang's condition Running.
func Says(g *v1alpha1.Gang) string {
	if c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionRunning); c != nil {
		return c.Message
	}
	return ""
}

// Trains waits until a gang runs the given generation or a later one and all its pods make steps.
func (w *World) Trains(ctx context.Context, namespace, name string, generation int64) (s Shape, err error) {
	var failed error
	err = w.Until(ctx, fmt.Sprintf("%s runs generation %d", name, generation), eventually.Timeout, func(ctx context.Context) (bool, string) {
		g, err := w.Gang(ctx, namespace, name)
		if err != nil {
			return false, err.Error()
		}
		if s, err = w.Shape(ctx, g); err != nil {
			return false, err.Error()
		}
		r := g.Status.Run
		switch {
		case g.Status.Phase == v1alpha1.PhaseFailed:
			failed = fmt.Errorf("%s failed: %s", name, Says(g))
			return true, ""
		case r == nil:
			return false, "no generation yet: " + Says(g)
		}
		full := !slices.ContainsFunc(s.Assignments, func(a Assignment) bool { return a.Container == "" })
		return full && r.Generation >= generation && r.State == v1alpha1.RunRunning && len(r.PendingReplacements) == 0 &&
				r.Progress.Step > r.RestoreStep && g.Status.Phase == v1alpha1.PhaseRunning,
			fmt.Sprintf("generation %d %s step %d restored %d, phase %s, pending %d, assignments %+v: %s", r.Generation, r.State,
				r.Progress.Step, r.RestoreStep, g.Status.Phase, len(r.PendingReplacements), s.Assignments, Says(g))
	})
	return s, errors.Join(err, failed)
}

// Well waits until a node accepts new pods again, with both its GPUs.
func (w *World) Well(ctx context.Context, node string) error {
	return w.Until(ctx, node+" takes new pods", eventually.Timeout, func(ctx context.Context) (bool, string) {
		n := &corev1.Node{}
		err := w.client.Get(ctx, client.ObjectKey{Name: node}, n)
		gpus := n.Status.Allocatable[layout.GPUResource]
		return err == nil && n.Annotations[v1alpha1.AnnotationOutage] == "" && len(n.Spec.Taints) == 0 && gpus.Value() == 2,
			fmt.Sprintf("%v %v %v GPUs, %v", n.Annotations, n.Spec.Taints, gpus.String(), err)
	})
}

// Block takes all GPUs of n nodes by running pods, and returns a function that ends them.
func (w *World) Block(ctx context.Context, namespace string, n int) (unblock func(context.Context) error, err error) {
	var pods []*corev1.Pod
	for i := range n {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("blocker-", i), Namespace: namespace}, Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			Containers: []corev1.Container{{Name: "sleep", Image: layout.BaseImage, Command: []string{"sleep", "3600"},
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{layout.GPUResource: resource.MustParse("2")}}}},
		}}
		if err := w.client.Create(ctx, pod); err != nil {
			return nil, fmt.Errorf("creating a blocker: %w", err)
		}
		pods = append(pods, pod)
	}
	err = w.Until(ctx, "blockers running", eventually.Timeout, func(ctx context.Context) (bool, string) {
		running := 0
		for _, p := range pods {
			if err := w.client.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
				return false, err.Error()
			}
			if p.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		return running == n, fmt.Sprintf("%d of %d", running, n)
	})
	return func(ctx context.Context) (err error) {
		for _, p := range pods {
			err = errors.Join(err, w.client.Delete(ctx, p))
		}
		return err
	}, err
}
