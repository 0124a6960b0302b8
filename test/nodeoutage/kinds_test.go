package nodeoutage

import (
	"errors"
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/internal/jobs/jobstest"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/test/devcluster"
)

// objectsOfGangsAlone: with the rights of the manifests the controller can make an opted-in object of another project's kind fail. It can
// do nothing else to that object, and nothing to others. An object counts as gone once it was deleted together with the definition of its
// kind, but not while the kind is defined and not served.
func objectsOfGangsAlone(w *world, c *devcluster.Cluster) {
	w.gangs(c)
	try := w.asController(c)
	scheme := ours(w)
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		w.t.Fatal(err)
	}
	admin, err := client.New(w.config, client.Options{Scheme: scheme})
	if err != nil {
		w.t.Fatal(err)
	}
	for kind, policy := range map[kinds.Kind]string{
		kinds.VolcanoJob{}: "holdfast-controller-volcano-jobs",
		kinds.JobSet{}:     "holdfast-controller-jobsets",
		kinds.PyTorchJob{}: "holdfast-controller-pytorchjobs",
	} {
		if err := admin.Create(w.ctx, definition(kind)); err != nil {
			w.t.Fatal(err)
		}
		made := map[string]*unstructured.Unstructured{}
		for _, name := range []string{"given-up", "plain"} {
			eventually.Succeeds(w.t, "an object of kind "+kinds.Title(kind), func() error {
				o := jobstest.Object(kind, types.NamespacedName{Namespace: "default", Name: name}, "")
				if name == "plain" {
					o.Object["spec"] = map[string]any{"pytorchReplicaSpecs": map[string]any{"Worker": map[string]any{"replicas": int64(3)}}}
				}
				made[name] = o
				return admin.Create(w.ctx, o)
			})
		}
		own, err := client.New(try.config, client.Options{Scheme: scheme})
		if err != nil {
			w.t.Fatal(err)
		}
		status := func(name, patch string) error {
			o := made[name].DeepCopy()
			return own.Status().Patch(w.ctx, o, client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll)
		}
		try.inForce(policy, func() error { return status("plain", `{"status":{"x":"y"}}`) })
		try.expect("status of an object without annotation", status("plain", `{"status":{"x":"y"}}`), "opted in at their creation")
		try.expect("another field of the status", status("given-up", `{"status":{"x":"y"}}`), "nothing of the status")
		spec := own.Patch(w.ctx, made["given-up"].DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"x":"y"}}`)), client.DryRunAll)
		try.expect("the spec", spec, "cannot patch resource")

		uid := string(made["given-up"].GetUID())
		version, title := kind.GroupVersionKind().ToAPIVersionAndKind()
		gang := &v1alpha1.Gang{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "given-up"}}
		gang.Spec.Members = 4
		gang.Spec.JobRef = v1alpha1.JobReference{APIVersion: version, Kind: title, Name: "given-up", UID: uid}
		if err := client.IgnoreNotFound(admin.Delete(w.ctx, gang.DeepCopy())); err != nil {
			w.t.Fatal(err)
		}
		eventually.Succeeds(w.t, "its Gang", func() error { return own.Create(w.ctx, gang.DeepCopy()) })
		key := coordinator.Key{Namespace: "default", Name: "given-up", Job: uid}
		if err := storeOver(w.t, own, try.config).End(w.ctx, key, elastic.Verdict{Reason: elastic.ReasonNoProgress, ExitCode: 1}); err != nil {
			w.t.Errorf("with its own rights the controller cannot make a %s fail: %v", kinds.Title(kind), err)
		}
		after := made["given-up"].DeepCopy()
		if err := admin.Get(w.ctx, client.ObjectKeyFromObject(after), after); err != nil {
			w.t.Fatal(err)
		}
		if s := kind.State(after); !s.Failed || !strings.Contains(fmt.Sprint(after.Object["status"]), string(elastic.ReasonNoProgress)) {
			w.t.Errorf("%s: %+v, status %v", kinds.Title(kind), s, after.Object["status"])
		}
		if definition(kind).Spec.Versions[0].Subresources.Scale != nil {
			w.scales(c, kind)
		}
		w.undefine(admin, kind, func(uid types.UID) error {
			_, obj, err := jobsOver(w.t, own, try.config).Live(w.ctx, client.ObjectKeyFromObject(after), uid)
			if obj != nil {
				err = errors.New("the object is there")
			}
			return err
		}, after.GetUID(), "of-another-object")
	}
}

// scales: object "given-up", which has a Gang, keeps its number of pods, and object "plain" can be scaled.
func (w *world) scales(c *devcluster.Cluster, kind kinds.Kind) {
	w.t.Helper()
	if _, err := c.Kubectl(w.ctx, "apply", "-f", "../../manifests/webhook/policy.yaml"); err != nil {
		w.t.Fatal(err)
	}
	scale := func(name string, n int, more ...string) error {
		args := []string{"scale", kind.Resource() + "/" + name, fmt.Sprintf("--replicas=%d", n), "--dry-run=server"}
		_, err := c.Kubectl(w.ctx, append(args, more...)...)
		return err
	}
	const says = "'holdfast-scales' denied request: the gang was formed with 4 pods and cannot change its size yet: delete the PyTorchJob and create it again"
	refused := func(n int, more ...string) (bool, any) {
		err := scale("given-up", n, more...)
		return err != nil && strings.Contains(err.Error(), says), err
	}
	eventually.Holds(w.t, "a scale of a gang is refused", func() (bool, any) { return refused(7) })
	// Each call reads again which kinds the server has, and a busy server leaves out one that was just defined.
	eventually.Holds(w.t, "a gang scaled down is refused", func() (bool, any) {
		return refused(1, "--current-replicas=3") // an update, as autoscalers send; the other requests are patches
	})
	eventually.Succeeds(w.t, "a gang scaled to its own size", func() error { return scale("given-up", 3) })
	eventually.Succeeds(w.t, "an object without a gang scaled", func() error { return scale("plain", 7) })
}

// undefine ends the serving of a kind and then deletes its definition; gone returns nil for the UID of an object that is taken for gone.
func (w *world) undefine(admin client.Client, kind kinds.Kind, gone func(types.UID) error, uids ...types.UID) {
	w.t.Helper()
	crd := definition(kind)
	if err := admin.Get(w.ctx, client.ObjectKeyFromObject(crd), crd); err != nil {
		w.t.Fatal(err)
	}
	crd.Spec.Versions = append(crd.Spec.Versions, *crd.Spec.Versions[0].DeepCopy())
	crd.Spec.Versions[0].Served, crd.Spec.Versions[1].Storage, crd.Spec.Versions[1].Name = false, false, "v0"
	if err := admin.Update(w.ctx, crd); err != nil {
		w.t.Fatal(err)
	}
	for _, uid := range uids {
		eventually.Holds(w.t, kinds.Title(kind)+" is not served: of an object nothing is known", func() (bool, any) {
			err := gone(uid)
			return err != nil && strings.Contains(err.Error(), "could not find the requested resource"), err
		})
	}
	if err := admin.Delete(w.ctx, crd); err != nil {
		w.t.Fatal(err)
	}
	for _, uid := range uids {
		eventually.Succeeds(w.t, kinds.Title(kind)+" is not defined: its objects are gone", func() error { return gone(uid) })
	}
}

// definition serves a kind with objects of any content. The real ones are in test/kinds.
func definition(kind kinds.Kind) *apiextensionsv1.CustomResourceDefinition {
	gvk := kind.GroupVersionKind()
	subresources := &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
	if kind == (kinds.PyTorchJob{}) {
		subresources.Scale = &apiextensionsv1.CustomResourceSubresourceScale{
			SpecReplicasPath:   ".spec.pytorchReplicaSpecs.Worker.replicas",
			StatusReplicasPath: ".status.replicaStatuses.Worker.active",
		}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: kind.Resource() + "." + gvk.Group, Annotations: map[string]string{
			apiextensionsv1.KubeAPIApprovedAnnotation: "unapproved, for a test",
		}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: gvk.Group,
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: kind.Resource(), Kind: gvk.Kind, ListKind: gvk.Kind + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name:         gvk.Version,
				Served:       true,
				Storage:      true,
				Subresources: subresources,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: ptr.To(true),
				}},
			}},
		},
	}
}
