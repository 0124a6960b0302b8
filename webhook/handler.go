package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"holdfast.dev/holdfast/internal/settings"
)

// Paths that the API server calls, as in the manifests.
const (
	PathPods = "/mutate-pods"
	PathJobs = "/mutate-jobs"
)

// Pods handles the admission of pods. It reads config in each call, for the pod's namespace, because certificates are renewed.
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
	// Gangs counts a namespace's Gangs, and MaxGangs is their limit; 0: they are not counted.
	Gangs    func(ctx context.Context, namespace string) (int, error)
	MaxGangs int
	// Limits reads the limits of a namespace; nil: they are not read.
	Limits func(ctx context.Context, namespace string) (Limits, error)
	// Devices is the same as Facts.Devices.
	Devices []string
	// ObserveOnly: Jobs that have not started yet are only observed.
	ObserveOnly bool
}

// Jobs handles the admission of Jobs.
func Jobs(cluster Cluster) admission.Handler {
	return admission.HandlerFunc(func(ctx context.Context, req admission.Request) admission.Response {
		job, err := decode[batchv1.Job](req.Object.Raw)
		if err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		switch req.Operation {
		case admissionv1.Create:
			return respond(ctx, job, MutateJob(ctx, job, cluster.gatherFacts(ctx, job, nil, req.Namespace)), req)
		case admissionv1.Update:
			old, err := decode[batchv1.Job](req.OldObject.Raw)
			if err != nil {
				return admission.Errored(http.StatusBadRequest, err)
			}
			facts := Facts{}
			if neverStarted(old) && neverStarted(job) {
				facts = cluster.gatherFacts(ctx, job, old, req.Namespace)
			}
			return respond(ctx, job, CheckJobUpdate(ctx, old, job, facts), req)
		}
		return admission.Allowed("")
	})
}

// gatherFacts gathers the facts about a Job. It reads the image if the Job leaves the command to it, unless old, the Job before a
// change, holds the command already.
func (c Cluster) gatherFacts(ctx context.Context, job, old *batchv1.Job, namespace string) (f Facts) {
	if c.Minor != nil {
		f.Minor = c.Minor(ctx)
	}
	f.ObserveOnly, f.Devices = c.ObserveOnly, c.Devices
	if c.MaxGangs > 0 && old == nil {
		f.MaxGangs = c.MaxGangs
		if n, err := c.Gangs(ctx, namespace); err == nil { // else the gang controller, which counts again, says so
			f.Gangs = n
		}
	}
	if s, errs := settings.JobSettings(job); c.Limits != nil && len(errs) == 0 && s.Enabled && !s.Observe {
		f.Limits, f.LimitsError = c.Limits(ctx, namespace)
	}
	query, wanted := WantsImage(ctx, job)
	if !wanted || c.Images == nil {
		return f
	}
	if f.Image = readBefore(ctx, old, query); f.Image != nil {
		return f
	}
	query.Namespace = namespace // the object's own may be empty yet
	p, err := c.Images(ctx, query)
	if err != nil {
		f.ImageError = err
		return f
	}
	f.Image = &p
	return f
}

func decode[T any](raw []byte) (*T, error) {
	obj := new(T)
	if err := json.Unmarshal(raw, obj); err != nil {
		return nil, fmt.Errorf("decoding the %T under admission: %w", obj, err)
	}
	return obj, nil
}

// respond turns an outcome into the patch from in to its object. Both are encoded from the same Go type,
// so fields that this build does not know are in neither and stay as they are.
// After the end of the request's context the outcome may be incomplete, and is not returned.
func respond[T any](ctx context.Context, in *T, out Outcome[*T], req admission.Request) admission.Response {
	if err := ctx.Err(); err != nil {
		return admission.Errored(http.StatusServiceUnavailable, fmt.Errorf("admission of the %T was cancelled before it finished: %w", in, err))
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
