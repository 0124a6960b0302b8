package plugin

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	schedulingv1alpha1 "holdfast.dev/holdfast/api/scheduling/v1alpha1"
)

// readArgs decodes the plugin's arguments strictly, sets defaults and validates.
func readArgs(obj runtime.Object) (args schedulingv1alpha1.HoldfastArgs, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("arguments of plugin %s: %w", Name, err)
		}
	}()
	switch o := obj.(type) {
	case nil:
	case *runtime.Unknown:
		if len(o.Raw) == 0 || string(o.Raw) == "null" {
			break
		}
		if err := yaml.UnmarshalStrict(o.Raw, &args); err != nil {
			return args, err
		}
		if gvk := args.GroupVersionKind(); gvk != schedulingv1alpha1.GroupVersion.WithKind(schedulingv1alpha1.Kind) {
			return args, fmt.Errorf("apiVersion %q, kind %q: set %q and %q", args.APIVersion, args.Kind, schedulingv1alpha1.GroupVersion, schedulingv1alpha1.Kind)
		}
	default:
		return args, fmt.Errorf("%T is not JSON", obj)
	}
	args.Default()
	return args, args.Validate(field.NewPath("args")).ToAggregate()
}
