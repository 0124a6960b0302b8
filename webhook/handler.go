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
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Paths that the API server calls, as the manifests name them.
const (
	PathPods = "/mutate-pods"
	PathJobs = "/mutate-jobs"
)

// Pods handles the admission of pods; config is asked for each call, because certificates are renewed.
func Pods(config func() (Config, error)) admission.Handler {
	return admission.HandlerFunc(func(_ context.Context, req admission.Request) admission.Response {
		cfg, err := config()
		if err != nil {
			return admission.Errored(http.StatusServiceUnavailable, fmt.Errorf("asking for the coordinator's certificate authority: %w", err))
		}
		pod, err := decode[corev1.Pod](req.Object.Raw)
		if err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		if req.Operation != admissionv1.Create {
			return admission.Allowed("")
		}
		return respond(pod, MutatePod(pod, cfg), req)
	})
}

// Jobs handles the admission of Jobs.
func Jobs() admission.Handler {
	return admission.HandlerFunc(func(_ context.Context, req admission.Request) admission.Response {
		job, err := decode[batchv1.Job](req.Object.Raw)
		if err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		switch req.Operation {
		case admissionv1.Create:
			return respond(job, MutateJob(job), req)
		case admissionv1.Update:
			old, err := decode[batchv1.Job](req.OldObject.Raw)
			if err != nil {
				return admission.Errored(http.StatusBadRequest, err)
			}
			return respond(job, CheckJobUpdate(old, job), req)
		}
		return admission.Allowed("")
	})
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
func respond[T any](in *T, out Outcome[*T], req admission.Request) admission.Response {
	if len(out.Errors) > 0 {
		kind := schema.GroupKind{Group: req.Kind.Group, Kind: req.Kind.Kind}
		name := req.Name
		status := apierrors.NewInvalid(kind, name, out.Errors).Status()
		return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: false, Result: &status, Warnings: out.Warnings}}
	}
	before, err := json.Marshal(in)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, fmt.Errorf("encoding the object under admission: %w", err))
	}
	after, err := json.Marshal(out.Object)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, fmt.Errorf("encoding the answer of admission: %w", err))
	}
	return admission.PatchResponseFromRaw(before, after).WithWarnings(out.Warnings...)
}
