package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/page"
	"holdfast.dev/holdfast/cmd/kubectl-holdfast/preview"
	"holdfast.dev/holdfast/gang/handover"
	"holdfast.dev/holdfast/internal/kinds"
	"holdfast.dev/holdfast/internal/settings"
)

// Exit codes of preview beside 0 and 1.
const (
	// exitRefused: admission refuses the Job or its pods.
	exitRefused = 2
	// exitNoRoom: the pods would not be placed now.
	exitNoRoom = 3
)

func previewCommand(flags *genericclioptions.ConfigFlags, streams genericclioptions.IOStreams) *cobra.Command {
	file := ""
	cmd := &cobra.Command{
		Use:   "preview -f FILE",
		Short: "show what admission would change in a job and where its pods would be placed, without creating it",
		Long: `What Holdfast would make of a job and where its pods would land, without creating anything: the API server
is asked by dry runs, the scheduler by a question. Exit code 0: the job would be admitted and placed (or the
scheduler was not asked, and the text says why); 1: an error; 2: admission refuses it; 3: its pods would not
be placed now.`,
		Example: `  kubectl holdfast preview -f job.yaml
  kustomize build . | kubectl holdfast preview -f -`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("preview reads a file and takes no names (%s): kubectl holdfast preview -f job.yaml", strings.Join(args, " "))
			}
			return nil
		},
	}
	out := outputFlag(cmd, "text")
	cmd.Flags().StringVarP(&file, "filename", "f", file, "file or URL with the Job, - for standard input")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout+schedulerTimeout)
		defer cancel()
		p, err := previewOf(ctx, flags, file)
		if err != nil {
			return err
		}
		if err := out.print(streams.Out, p, func(string) string { return p.Text() }); err != nil {
			return err
		}
		if fits, known := p.Fits(); known && !fits {
			return &exitError{code: exitNoRoom}
		}
		return nil
	}
	return cmd
}

// previewOf asks API server and scheduler about the Job of a file.
func previewOf(ctx context.Context, flags *genericclioptions.ConfigFlags, file string) (preview.Preview, error) {
	var none preview.Preview
	if file == "" {
		return none, errors.New("name the file with the Job: -f job.yaml, or -f - for standard input")
	}
	job, err := readJob(file)
	if err != nil {
		return none, err
	}
	var warnings warned
	c, cfg, namespace, err := connect(flags, &warnings)
	if err != nil {
		return none, err
	}
	if err := settleNamespace(job, namespace, flags.Namespace != nil && *flags.Namespace != ""); err != nil {
		return none, err
	}
	a, err := dryRun(ctx, c, job)
	if err != nil {
		return none, err
	}
	switch s, _ := settings.JobSettings(a.Job); {
	case s.Observe:
		a.Unasked = "the job is only observed: its own scheduler places its pods"
	case a.Pod != nil && handover.Is(a.Pod):
		a.Unasked = "Volcano places the pods (schedulerName: volcano), and only Holdfast's scheduler answers previews"
	case a.Pod != nil:
		var pods []corev1.Pod
		if pods, a.Unasked = preview.Members(a.Pod, a.Job); a.Unasked != "" {
			break
		}
		if a.Where, a.Unasked, err = askWhere(ctx, cfg, pods); err != nil {
			return none, err
		}
	}
	if a.Nodes, a.Unread, err = nodesFor(ctx, c, a.Job); err != nil {
		return none, err
	}
	quotas := &corev1.ResourceQuotaList{}
	switch err := c.List(ctx, quotas, client.InNamespace(a.Job.Namespace)); {
	case apierrors.IsForbidden(err):
		a.QuotasUnread = "you may not list resourcequotas in namespace " + a.Job.Namespace
	case err != nil:
		return none, fmt.Errorf("listing the quotas of namespace %s: %w", a.Job.Namespace, err)
	}
	a.Quotas = quotas.Items
	a.Warnings = append(a.Warnings, warnings.texts...)
	return preview.Of(a)
}

// nodesFor lists the nodes that a job's state has to fit on; to see them is not every user's right.
func nodesFor(ctx context.Context, c client.Reader, job *batchv1.Job) (nodes []corev1.Node, unread string, err error) {
	if s, _ := settings.JobSettings(job); s.StateBytes == 0 {
		return nil, "", nil
	}
	list := &corev1.NodeList{}
	switch err := c.List(ctx, list); {
	case apierrors.IsForbidden(err):
		return nil, "you may not list nodes: the ClusterRole " + ownName(nodesRole) + ", bound with a ClusterRoleBinding, allows it", nil
	case err != nil:
		return nil, "", fmt.Errorf("listing nodes: %w", err)
	}
	return list.Items, "", nil
}

// warned collects what the API server says beside its answers.
type warned struct{ texts []string }

func (w *warned) HandleWarningHeaderWithContext(_ context.Context, code int, _, text string) {
	if code == 299 && !slices.Contains(w.texts, text) {
		w.texts = append(w.texts, text)
	}
}

// readJob reads the one Job of a file, which may hold other objects as well.
func readJob(file string) (*unstructured.Unstructured, error) {
	infos, err := resource.NewLocalBuilder().
		Unstructured().
		FilenameParam(false, &resource.FilenameOptions{Filenames: []string{file}}).
		Flatten().
		Do().
		Infos()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	var jobs []*unstructured.Unstructured
	var others []string
	var refused error
	for _, info := range infos {
		u, ok := info.Object.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		kind := u.GroupVersionKind()
		if kind == batchv1.SchemeGroupVersion.WithKind("Job") {
			jobs = append(jobs, u)
			continue
		}
		others = append(others, u.GetAPIVersion()+" "+u.GetKind())
		if k, known := kinds.Of(kind.GroupKind()); known && refused == nil {
			refused = otherKind(file, k, u)
		}
	}
	switch {
	case len(jobs) == 1:
		return jobs[0], nil
	case len(jobs) > 1:
		return nil, fmt.Errorf("%s holds %d Jobs: put the one to be previewed into a file of its own", file, len(jobs))
	case refused != nil:
		return nil, refused
	case len(others) > 0:
		return nil, fmt.Errorf("%s holds no batch/v1 Job, only %s: preview reads batch Jobs", file, strings.Join(others, ", "))
	}
	return nil, fmt.Errorf("%s holds no object", file)
}

// otherKind refuses to preview a job of a kind that Holdfast supports, and says what works.
func otherKind(file string, k kinds.Kind, u *unstructured.Unstructured) error {
	return fmt.Errorf("preview reads batch Jobs (batch/v1) alone, and %s holds %s %s (%s): kubectl apply --dry-run=server -f %s shows whether admission accepts it, with its warnings; "+
		"once it is created kubectl holdfast explain %s/%s shows where its pods are placed, or why not",
		file, kinds.Title(k), u.GetName(), u.GetAPIVersion(), file, page.JobWord(u.GroupVersionKind().GroupKind()), u.GetName())
}

// settleNamespace puts the Job where kubectl would create it.
func settleNamespace(job *unstructured.Unstructured, namespace string, asked bool) error {
	own := job.GetNamespace()
	if own != "" && asked && own != namespace {
		return fmt.Errorf("the Job has namespace %s and -n gives %s: remove one of them", own, namespace)
	}
	if own == "" {
		job.SetNamespace(namespace)
	}
	return nil
}

// dryRun asks the API server what it would make of the Job and of its first pod, with and without Holdfast.
func dryRun(ctx context.Context, c client.Client, file *unstructured.Unstructured) (preview.Answers, error) {
	var a preview.Answers
	job, err := try[batchv1.Job](ctx, c, file)
	if apierrors.IsAlreadyExists(err) {
		name := file.GetName()
		file = file.DeepCopy()
		file.SetName(name[:min(len(name), 50)] + "-preview")
		a.Warnings = append(a.Warnings, fmt.Sprintf("a Job %s exists already: the preview is of one named %s", name, file.GetName()))
		job, err = try[batchv1.Job](ctx, c, file)
	}
	if err != nil {
		return a, refusal("the Job", "jobs", file.GetNamespace(), err)
	}
	a.Job = job
	if _, admitted := settings.AdmittedJob(job); !admitted {
		if s, errs := settings.JobSettings(job); s.Enabled && len(errs) == 0 {
			return a, fmt.Errorf("the cluster admits the Job, but did not call Holdfast's webhook: check whether Holdfast is installed (kubectl -n %s get pods)", ownNamespace())
		}
		return a, fmt.Errorf(`the Job is not opted in, so Holdfast would not change it: annotate it with %s: "true"`, v1alpha1.AnnotationEnabled)
	}
	if a.Plain, err = try[batchv1.Job](ctx, c, preview.Plain(file)); err != nil {
		return a, refusal("the Job without Holdfast", "jobs", file.GetNamespace(), err)
	}
	plain := a.Plain.DeepCopy()
	plain.UID = job.UID
	for _, pod := range []struct {
		of   *batchv1.Job
		into **corev1.Pod
	}{{job, &a.Pod}, {plain, &a.PlainPod}} {
		u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(preview.PodOf(pod.of, 0))
		if err != nil {
			return a, fmt.Errorf("encoding a pod: %w", err)
		}
		object := &unstructured.Unstructured{Object: u}
		object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		*pod.into, err = try[corev1.Pod](ctx, c, object)
		if notAllowed(err) {
			a.Pod, a.PlainPod = nil, nil
			a.Unshown = fmt.Sprintf("you may not create pods in namespace %s, which a dry run of one needs", file.GetNamespace())
			a.Unasked = "the query of the scheduler needs the pods, which could not be created"
			return a, nil
		}
		if err != nil {
			return a, refusal("a pod of the Job", "pods", file.GetNamespace(), err)
		}
	}
	return a, nil
}

// try creates an object in a dry run and returns what would be stored.
func try[T any](ctx context.Context, c client.Client, object *unstructured.Unstructured) (*T, error) {
	u := object.DeepCopy()
	if err := c.Create(ctx, u, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
		return nil, err
	}
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("decoding the API server's answer: %w", err)
	}
	return out, nil
}

// notAllowed reports whether the user lacks a right, as opposed to an object that admission forbids.
func notAllowed(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "cannot create resource")
}

// refusal says what a failed dry run means and what to do.
func refusal(what, resource, namespace string, err error) error {
	switch {
	case notAllowed(err):
		return fmt.Errorf("you may not create %s in namespace %s, which a dry run needs although it creates nothing: %w", resource, namespace, err)
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
		return &exitError{code: exitRefused, err: fmt.Errorf("%s would be refused: %w", what, err)}
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: create the namespace first, or name another with -n", err)
	case strings.Contains(err.Error(), "failed calling webhook"):
		return fmt.Errorf("an admission webhook does not answer, so that nothing can be created either (Holdfast's: kubectl -n %s get pods): %w", ownNamespace(), err)
	}
	return fmt.Errorf("dry run of %s at the API server: %w", what, err)
}
