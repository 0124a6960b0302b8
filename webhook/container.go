package webhook

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/ckptagent/launch"
	"holdfast.dev/holdfast/internal/settings"
)

// chooseContainer finds the container that trains: the one named; else, of those that ask for devices, or of all where none
// does, the only one, the one that kubectl takes for the pod's, or the only one that names a launcher. keyPath is the
// annotation that names it.
func chooseContainer(ctx context.Context, spec *corev1.PodSpec, named, ofKubectl string, keyPath *field.Path) (int, *field.Error) {
	var all, candidates []int
	var names []string
	for i, c := range spec.Containers {
		if c.Name == named && named != "" {
			return i, nil
		}
		all, names = append(all, i), append(names, c.Name)
		if settings.AsksForDevices(&c) {
			candidates = append(candidates, i)
		}
	}
	choices := "write one of " + strings.Join(names, ", ")
	if named != "" {
		return 0, field.Invalid(keyPath, named, "names no container of the pod: "+choices)
	}
	if len(candidates) == 0 {
		candidates = all
	}
	if len(candidates) == 1 {
		return candidates[0], nil
	}
	if i := slices.IndexFunc(candidates, func(i int) bool { return ofKubectl != "" && spec.Containers[i].Name == ofKubectl }); i >= 0 {
		return candidates[i], nil
	}
	launchers := slices.DeleteFunc(slices.Clone(candidates), func(i int) bool {
		return !launch.NamesLauncher(readCommand(ctx, &spec.Containers[i], nil).argv)
	})
	if len(launchers) == 1 {
		return launchers[0], nil
	}
	return 0, field.Required(keyPath, "must name the container that trains, because neither devices nor "+defaultContainerKey+" nor a launcher in one command identify it: "+
		choices+" into annotation "+v1alpha1.AnnotationContainer)
}
