package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/settings"
)

// ImageProcess is what an image starts if the container names no command. It is read once, at the Job's admission, and kept in an
// annotation of the pod template, so that all pods of the Job start the same also after the tag moves. The user's own fields stay
// as they were applied.
type ImageProcess struct {
	// Image is the image with its digest.
	Image      string   `json:"image"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
}

// ImageQuery names the image whose command is read.
type ImageQuery struct {
	Image string
	// Architecture of the nodes that the pods select; empty: any.
	Architecture string
	// Namespace, PullSecrets and ServiceAccount give the credentials of the pull.
	Namespace      string
	PullSecrets    []string
	ServiceAccount string
}

// Images returns what an image starts. The error text is a part of a sentence in a message to users.
type Images func(context.Context, ImageQuery) (ImageProcess, error)

// WantsImage reports whether the Job's command is known only from its image, and returns the query for it.
func WantsImage(ctx context.Context, job *batchv1.Job) (ImageQuery, bool) {
	s, errs := settings.JobSettings(job)
	if len(errs) > 0 || !s.Enabled || s.Observe {
		return ImageQuery{}, false
	}
	spec := &job.Spec.Template.Spec
	t, errs := findTraining(ctx, spec, job.Spec.Template.Annotations, templatePath.Child("spec"), s, settings.TemplateAnnotations.Key)
	if len(errs) > 0 || len(t.container().Command) > 0 || t.container().Image == "" {
		return ImageQuery{}, false
	}
	q := ImageQuery{
		Image:          t.container().Image,
		Namespace:      job.Namespace,
		Architecture:   spec.NodeSelector[corev1.LabelArchStable],
		ServiceAccount: spec.ServiceAccountName,
	}
	if q.ServiceAccount == "" {
		q.ServiceAccount = "default"
	}
	for _, s := range spec.ImagePullSecrets {
		q.PullSecrets = append(q.PullSecrets, s.Name)
	}
	return q, true
}

// readBefore is the image command that the Job was stamped with, if its change keeps the image and the architecture: an unreachable
// registry must not block changes of a waiting Job.
func readBefore(ctx context.Context, old *batchv1.Job, now ImageQuery) *ImageProcess {
	if old == nil {
		return nil
	}
	was, wanted := WantsImage(ctx, old)
	var p ImageProcess
	if !wanted || was.Image != now.Image || was.Architecture != now.Architecture ||
		json.Unmarshal([]byte(old.Spec.Template.Annotations[v1alpha1.AnnotationImageCommand]), &p) != nil || len(p.Entrypoint)+len(p.Cmd) == 0 {
		return nil
	}
	return &p
}

// text is the annotation that carries p.
func (p ImageProcess) text() string {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // plain strings always encode
	}
	return string(text)
}

// into writes into a container without a command what the container runtime would start: ENTRYPOINT with the container's args, or
// with CMD if it has none.
func (p ImageProcess) into(c *corev1.Container) {
	switch {
	case len(p.Entrypoint) > 0:
		c.Command = verbatim(p.Entrypoint)
		if len(c.Args) == 0 {
			c.Args = verbatim(p.Cmd)
		}
	case len(c.Args) > 0:
		c.Command, c.Args = c.Args, nil
	default:
		c.Command = verbatim(p.Cmd)
	}
}

// unread is why the image's command is unknown although it was needed.
func (f Facts) unread() error {
	if f.Image != nil && len(f.Image.Entrypoint)+len(f.Image.Cmd) == 0 {
		return errors.New("it has neither ENTRYPOINT nor CMD")
	}
	return f.ImageError
}

// verbatim escapes what Kubernetes would resolve in a container's command and does not in an image's.
func verbatim(argv []string) []string {
	out := slices.Clone(argv)
	for i, s := range out {
		if strings.Contains(s, "$(") || strings.Contains(s, "$$") {
			out[i] = strings.ReplaceAll(s, "$", "$$")
		}
	}
	return out
}

// useImage gives a pod's training container the command that was read from its image when its Job was admitted.
func useImage(ctx context.Context, pod *corev1.Pod, s settings.Settings) {
	var p ImageProcess
	if json.Unmarshal([]byte(pod.Annotations[v1alpha1.AnnotationImageCommand]), &p) != nil {
		return
	}
	if t, errs := findTraining(ctx, &pod.Spec, pod.Annotations, specPath, s, settings.TemplateAnnotations.Key); len(errs) == 0 &&
		len(t.container().Command) == 0 {
		p.into(t.container())
	}
}
