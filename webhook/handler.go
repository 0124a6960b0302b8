package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/kinds"
)

// Paths that the API server calls, as in the manifests.
const (
	PathPods    = "/mutate-pods"
	PathJobs    = "/mutate-jobs"
	PathLeaving = "/leaving-pods"
	PathEnded   = "/ended-pods"
)

// Pods handles the admission of pods. Pods reads config in each call, for the pod's namespace, because certificates are renewed.
func Pods(config func(ctx context.Context, namespace string) (Config, error)) admission.Handler {
	return admission.HandlerFunc(func(ctx context.Context, req admission.Request) admission.Response {
		cfg, err := config(ctx, req.Namespace)
		if err != nil {
			return admission.Errored(http.StatusServiceUnavailable, fmt.Errorf("reading the coordinator's certificate authority: %w", err))
		}
		pod, err := decode[corev1.Pod](req.Object.Raw)
		if err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		if req.Operation != admissionv1.Create {
			return admission.Allowed("")
		}
		return respond(ctx, pod, MutatePod(ctx, pod, cfg), req)
	})
}

// Cluster provides the facts that an object does not hold.
type Cluster struct {
	// Images reads what images start; nil: none is read.
	Images Images
	// Minor returns N of the API server's Kubernetes 1.N, 0: unknown; nil: unknown.
	Minor func(context.Context) int
	// Gangs lists a namespace's Gangs, which stay the cache's own; nil: they are not read. MaxGangs is their limit; 0: none.
	Gangs    func(ctx context.Context, namespace string) ([]v1alpha1.Gang, error)
	MaxGangs int
	// Limits reads the limits of a namespace; nil: they are not read.
	Limits func(ctx context.Context, namespace string) (Limits, error)
	// Devices is the same as Facts.Devices.
	Devices []string
	// ObserveOnly: Jobs that have not started yet are only observed.
	ObserveOnly bool
}

// Jobs handles the admission of the objects that jobs are.
func Jobs(cluster Cluster) admission.Handler {
	return admission.HandlerFunc(func(ctx context.Context, req admission.Request) admission.Response {
		kind, known := kinds.Of(schema.GroupKind{Group: req.Kind.Group, Kind: req.Kind.Kind})
		if !known {
			return admission.Errored(http.StatusBadRequest, fmt.Errorf("holdfast serves no kind %s of %s", req.Kind.Kind, req.Kind.Group))
		}
		obj, err := decodeObject(req.Object.Raw)
		if err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		now := takeApart(kind, obj)
		switch req.Operation {
		case admissionv1.Create:
			now.prepare(nil)
			return respond(ctx, obj, now.mutate(ctx, nil, cluster.gatherFacts(ctx, now, nil, req.Namespace)), req)
		case admissionv1.Update:
			old, err := decodeObject(req.OldObject.Raw)
			if err != nil {
				return admission.Errored(http.StatusBadRequest, err)
			}
			was := takeApart(kind, old)
			if !now.rewrites(was) {
				return respond(ctx, obj, now.checkUpdate(was), req)
			}
			now.prepare(was)
			return respond(ctx, obj, now.mutate(ctx, was, cluster.gatherFacts(ctx, now, was, req.Namespace)), req)
		}
		return admission.Allowed("")
	})
}

// gatherFacts gathers the facts about an object. gatherFacts reads an image if the object leaves a command to the image, unless was, the
// object before a change, holds the command already.
func (c Cluster) gatherFacts(ctx context.Context, o, was *subject, namespace string) (f Facts) {
	if c.Minor != nil {
		f.Minor = c.Minor(ctx)
	}
	f.ObserveOnly, f.Devices = c.ObserveOnly, c.Devices
	if c.Gangs != nil && was == nil && !o.isChild() {
		f.MaxGangs = c.MaxGangs
		if gangs, err := c.Gangs(ctx, namespace); err == nil { // else the gang controller, which looks again, says so
			f.Gangs, f.Holder = len(gangs), o.holder(gangs)
		}
	}
	if !o.acts() {
		return f
	}
	if c.Limits != nil {
		f.Limits, f.LimitsError = c.Limits(ctx, namespace)
	}
	if c.Images != nil {
		f.Images = c.readImages(ctx, o, was, namespace)
	}
	return f
}

// readImages reads what images start, each once: roles often have the same.
func (c Cluster) readImages(ctx context.Context, o, was *subject, namespace string) map[string]Image {
	images, read := map[string]Image{}, map[string]Image{}
	for _, r := range o.roles {
		query, wanted := o.wantsImage(ctx, r)
		if !wanted {
			continue
		}
		if was != nil {
			if p := was.readBefore(ctx, r.Name, query); p != nil {
				images[r.Name] = Image{Process: p}
				continue
			}
		}
		query.Namespace = namespace // the namespace in the object itself may still be empty
		key := fmt.Sprintf("%q", query)
		image, is := read[key]
		if !is {
			p, err := c.Images(ctx, query)
			if image = (Image{Process: &p}); err != nil {
				image = Image{Err: err}
			}
			read[key] = image
		}
		images[r.Name] = image
	}
	return images
}

// decodeObject reads an object of any kind, with whole numbers as such.
func decodeObject(raw []byte) (*unstructured.Unstructured, error) {
	obj := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(raw, &obj.Object); err != nil {
		return nil, fmt.Errorf("decoding the object under admission: %w", err)
	}
	if obj.Object == nil {
		return nil, errors.New("the request has no object under admission")
	}
	return obj, nil
}

func decode[T any](raw []byte) (*T, error) {
	obj := new(T)
	if err := json.Unmarshal(raw, obj); err != nil {
		return nil, fmt.Errorf("decoding the %T under admission: %w", obj, err)
	}
	return obj, nil
}

// respond turns an outcome into the patch from in to its object. Both are encoded from the same Go type, so fields of a pod that this
// build does not know are in neither and stay as they are.
// After the end of the request's context the outcome may be incomplete, and is not returned.
func respond[T any](ctx context.Context, in *T, out Outcome[*T], req admission.Request) admission.Response {
	if err := ctx.Err(); err != nil {
		return admission.Errored(http.StatusServiceUnavailable, fmt.Errorf("admission of the %s was cancelled before it finished: %w", req.Kind.Kind, err))
	}
	if len(out.Errors) > 0 {
		kind := schema.GroupKind{Group: req.Kind.Group, Kind: req.Kind.Kind}
		name := req.Name
		status := apierrors.NewInvalid(kind, name, readable(out.Errors)).Status()
		return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: false, Result: &status, Warnings: out.Warnings}}
	}
	before, err := json.Marshal(in)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, fmt.Errorf("encoding the object under admission: %w", err))
	}
	after, err := json.Marshal(out.Object)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, fmt.Errorf("encoding the admission response: %w", err))
	}
	return admission.PatchResponseFromRaw(before, after).WithWarnings(out.Warnings...)
}

// mostQuoted limits how much of a value a refusal quotes before it says what is wrong.
const mostQuoted = 1 << 10

// readable shortens long values, so that the reason is visible.
func readable(errs field.ErrorList) field.ErrorList {
	for _, e := range errs {
		if v, ok := e.BadValue.(string); ok && len(v) > mostQuoted {
			e.BadValue = v[:mostQuoted] + "…"
		}
	}
	return errs
}
