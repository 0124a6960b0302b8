package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

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

// wantsImage reports whether the command of the role's training container is known only from its image, and returns the query for it.
func (o *subject) wantsImage(ctx context.Context, r *role) (ImageQuery, bool) {
	spec := &r.Pod.Spec
	t, errs := findTraining(ctx, spec, r.hints(), r.Template.Child("spec"), r.s, r.annotations().Key)
	if len(errs) > 0 || len(t.container().Command) > 0 || t.container().Image == "" {
		return ImageQuery{}, false
	}
	q := ImageQuery{
		Image:          t.container().Image,
		Namespace:      o.obj.GetNamespace(),
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

// acts reports whether a prepared object is opted in to more than being watched, as far as its settings can be read.
func (o *subject) acts() bool {
	return len(o.unset) == 0 && o.s.Enabled && !o.s.Observe && !o.isChild()
}

// readBefore is the image command that the role of an object was stamped with, if its change keeps the image and the architecture: an
// unreachable registry must not block changes of a waiting Job.
func (o *subject) readBefore(ctx context.Context, name string, now ImageQuery) *ImageProcess {
	r := o.role(name)
	if o.unset = o.readSettings(); r == nil || !o.acts() {
		return nil
	}
	was, wanted := o.wantsImage(ctx, r)
	var p ImageProcess
	if !wanted || was.Image != now.Image || was.Architecture != now.Architecture ||
		json.Unmarshal([]byte(r.Pod.Annotations[v1alpha1.AnnotationImageCommand]), &p) != nil || len(p.Entrypoint)+len(p.Cmd) == 0 {
		return nil
	}
	return &p
}

// effectiveSpec is the spec of the role's pods with what the image starts in place of the command that is missing.
func (r *role) effectiveSpec(ctx context.Context, image Image) *corev1.PodSpec {
	if image.Process == nil && len(r.Env) == 0 {
		return &r.Pod.Spec
	}
	spec := r.spec()
	if image.Process == nil {
		return spec
	}
	if t, errs := findTraining(ctx, spec, r.hints(), r.Template, r.s, r.annotations().Key); len(errs) == 0 && len(t.container().Command) == 0 {
		image.Process.into(t.container())
	}
	return spec
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

// unread returns the reason why the image's command, which the webhook needs, is unknown.
func (i Image) unread() error {
	if i.Process != nil && len(i.Process.Entrypoint)+len(i.Process.Cmd) == 0 {
		return errors.New("it has neither ENTRYPOINT nor CMD")
	}
	return i.Err
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
