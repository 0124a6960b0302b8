package settings

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/gang"
)

// maxPods bounds slices, blocks and spares. A greater value is a typing error.
const maxPods = 100_000

// setTopology parses one value, and returns what is wrong with it. Only the scheduler can check levels: it refuses a gang that names an
// unknown level, and lists those that exist.
func setTopology(t *gang.Topology, key, value string) (problem string) {
	switch key {
	case v1alpha1.AnnotationTopologyRequired:
		t.Required, problem = level(value, "to place the pods wherever they fit remove the key")
	case v1alpha1.AnnotationTopologyPreferred:
		t.Preferred, problem = level(value, "to have the pods as close together as they fit remove the key")
	case v1alpha1.AnnotationSliceLevel:
		t.SliceLevel, problem = level(value, "to spread the pods as they fit remove the key")
	case v1alpha1.AnnotationSliceSize:
		t.SliceSize, problem = podCount(value, 1, "the number of pods of a slice; remove the key to have as many as fit")
	case v1alpha1.AnnotationBlockSize:
		t.Block, problem = podCount(value, 1, "the number of consecutive pods that are not to be parted, such as tensor times pipeline parallelism by GPUs per pod; remove the key if any may be")
	case v1alpha1.AnnotationSpares:
		t.Spares, problem = podCount(value, 0, "the number of nodes that stay free in each domain")
	case v1alpha1.AnnotationSliceShape:
		t.Uneven = value == v1alpha1.SliceUneven
		if value != v1alpha1.SliceEven && value != v1alpha1.SliceUneven {
			return `must be "even" (each domain gets the same number of pods) or "uneven"`
		}
	case v1alpha1.AnnotationWholeNodes:
		t.Whole = value == "true"
		if value != "true" && value != "false" {
			return `must be "true" or "false"`
		}
	}
	return problem
}

func level(value, off string) (string, string) {
	if bad := validation.IsQualifiedName(value); len(bad) > 0 {
		return value, `must name a topology level, such as "rack" or "nvlink", or its node label; ` + off
	}
	return value, ""
}

func podCount(value string, least int, what string) (int, string) {
	n, err := strconv.Atoi(value)
	if err != nil || n < least || n > maxPods {
		return 0, fmt.Sprintf("must be from %d to %d: %s", least, maxPods, what)
	}
	return n, ""
}

// checkTopology refuses settings that contradict each other or have no effect; at has the path of each key.
func (s *Settings) checkTopology(at map[string]*field.Path) field.ErrorList {
	t := s.Topology
	size, shape := at[v1alpha1.AnnotationSliceSize], at[v1alpha1.AnnotationSliceShape]
	switch {
	case t.SliceLevel != "" && t.SliceLevel == t.Required && s.Enabled:
		return field.ErrorList{field.Invalid(at[v1alpha1.AnnotationSliceLevel], t.SliceLevel, "has no effect where all pods are in one domain of the same level ("+v1alpha1.AnnotationTopologyRequired+
			"): name a narrower level for slices, or a wider one that is required")}
	case t.SliceSize > 0 && t.Block > 1 && t.SliceSize%t.Block != 0:
		return field.ErrorList{field.Invalid(size, strconv.Itoa(t.SliceSize), fmt.Sprintf("must be a multiple of %s (%d): a slice is made of whole blocks", v1alpha1.AnnotationBlockSize, t.Block))}
	case shape != nil && t.SliceLevel == "" && t.SliceSize == 0 && t.Block < 2 && s.Enabled:
		return field.ErrorList{
			field.Invalid(
				shape,
				map[bool]string{true: v1alpha1.SliceUneven, false: v1alpha1.SliceEven}[t.Uneven],
				"has no effect without slices: set "+v1alpha1.AnnotationSliceLevel+", "+v1alpha1.AnnotationSliceSize+" or "+v1alpha1.AnnotationBlockSize+", or remove the key",
			),
		}
	}
	return nil
}

// GangTopology returns what a pod's gang requests of the fabric.
func GangTopology(pod *corev1.Pod) (gang.Topology, error) {
	var t gang.Topology
	for _, key := range OurKeys(pod.Annotations) {
		value := pod.Annotations[key]
		if problem := setTopology(&t, key, value); problem != "" {
			return gang.Topology{}, fmt.Errorf("annotation %s of pod %s is %q: it %s", key, pod.Name, value, problem)
		}
	}
	return t, nil
}

// WantsWholeNode reports whether a pod requests a node without pods of others.
func WantsWholeNode(pod *corev1.Pod) bool {
	return pod.Annotations[v1alpha1.AnnotationWholeNodes] == "true"
}

// CheckAsks checks Holdfast's keys on a pod that is only placed with a group of another API. CheckAsks refuses all keys except those on the
// fabric.
func CheckAsks(pod *corev1.Pod) field.ErrorList {
	s, at := Settings{Enabled: true}, map[string]*field.Path{}
	var errs field.ErrorList
	for _, key := range OurKeys(pod.Annotations) {
		path, value := MetadataAnnotations.Key(key), pod.Annotations[key]
		switch {
		case IsSystemKey(key):
			continue
		case !topologyKeys[key]:
			errs = append(errs, field.Invalid(path, value, "is not for pods of a PodGroup, which are placed and no more: remove it, or annotate a Job with "+v1alpha1.AnnotationEnabled))
			continue
		}
		at[key] = path
		if problem := setTopology(&s.Topology, key, value); problem != "" {
			errs = append(errs, field.Invalid(path, value, problem))
		}
	}
	if len(errs) == 0 {
		errs = s.checkTopology(at)
	}
	return errs
}

// TopologyKeys returns the keys on the fabric, sorted.
func TopologyKeys() []string { return slices.Sorted(maps.Keys(topologyKeys)) }

// topologyKeys are the keys that setTopology parses.
var topologyKeys = map[string]bool{
	v1alpha1.AnnotationTopologyRequired:  true,
	v1alpha1.AnnotationTopologyPreferred: true,
	v1alpha1.AnnotationSliceLevel:        true,
	v1alpha1.AnnotationSliceSize:         true,
	v1alpha1.AnnotationSliceShape:        true,
	v1alpha1.AnnotationBlockSize:         true,
	v1alpha1.AnnotationSpares:            true,
	v1alpha1.AnnotationWholeNodes:        true,
}
