package hang

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/harness"
)

const (
	namespace, shared, container = "hang", "shared", "trainer"
	pods, perPod                 = 2, 2
	line                         = "torchrun --nnodes=%d --nproc-per-node=%d --master-addr=none --master-port=29500 /trainer/lesson.py /" + shared + "/%s %s"
	// atOnce is how many jobs run at a time: with more, two cores are too busy for a silence to be one.
	atOnce = 3
)

//go:embed lesson.py
var lesson string

// silence is one way in which the ranks of a job make no step.
type silence struct {
	// name is what lesson.py calls it; it does nothing for one that the test does from outside.
	name string
	// timeout is the job's hang-timeout; "": none.
	timeout string
	// taken are the verdicts that may be reported of it.
	taken []string
	// says is in the text of the verdict.
	says string
	// plays is the test, while the job runs.
	plays func(context.Context, *testing.T, *job)
}

// play plays silences on one cluster, a few at a time.
func play(t *testing.T, name string, all []silence) {
	c := harness.Start(t, devcluster.Options{Name: name, Nodes: 2, Replace: true})
	ctx := t.Context()
	if err := c.Install(ctx); err != nil {
		t.Fatal(err)
	}
	for _, o := range harness.TrainerRoom(namespace) {
		if m, ok := o.(*corev1.ConfigMap); ok {
			m.Data = map[string]string{"lesson.py": lesson}
		}
		if err := c.Client().Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	var running sync.WaitGroup
	room := make(chan bool, atOnce)
	for _, s := range all {
		room <- true
		running.Go(func() {
			t.Run(s.name, func(t *testing.T) {
				j := begin(ctx, t, c, s)
				s.plays(ctx, t, j)
				j.row.write(t)
			})
			<-room
		})
	}
	running.Wait()
}

// job is one job with its silence.
type job struct {
	*harness.Cluster
	silence
	// shape is the job's pods once all had started.
	shape harness.Shape
	row   row
	// quiet is when the ranks stopped making steps; zero: not yet.
	quiet time.Time
}

func begin(ctx context.Context, t *testing.T, c *harness.Cluster, s silence) *job {
	t.Helper()
	j := &job{Cluster: c, silence: s, row: row{Name: s.name, Test: filepath.Dir(t.Name())}}
	spec := harness.TrainerPod(fmt.Sprintf(line, pods, perPod, s.name, s.name), 5, 0)
	resources := &spec.Containers[0].Resources
	delete(resources.Limits, layout.GPUResource)
	delete(resources.Requests, layout.GPUResource)
	resources.Limits[corev1.ResourceMemory] = resource.MustParse("1536Mi")
	resources.Requests[corev1.ResourceMemory] = resource.MustParse("256Mi")
	spec.Volumes = append(spec.Volumes, harness.ClaimVolume(shared, false))
	spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: shared, MountPath: "/" + shared})
	annotations := map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationHang: "act", v1alpha1.AnnotationStandbys: "off"}
	if s.timeout != "" {
		annotations[v1alpha1.AnnotationHangTimeout] = s.timeout
	}
	if err := c.Client().Create(ctx, harness.Job(namespace, s.name, pods, 0, annotations, spec)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.remove(t) })
	j.until(ctx, t, "all pods run", func(ctx context.Context, g *v1alpha1.Gang) (bool, string) {
		var err error
		j.shape, err = j.Shape(ctx, g)
		full := !slices.ContainsFunc(j.shape.Assignments, func(a harness.Assignment) bool { return a.Container == "" })
		return err == nil && full && g.Status.Run != nil && g.Status.Run.Generation == 1, fmt.Sprintf("%+v, %v", j.shape, err)
	})
	return j
}

// remove removes the job, after a failure with all that people would look at.
func (j *job) remove(t *testing.T) {
	ctx := context.Background()
	if t.Failed() {
		text, err := j.Explain(ctx, namespace, j.name)
		j.Say("%s: explain: %v\n%s", j.name, err, text)
		for _, args := range [][]string{
			{"get", "gang,job", "-n", namespace, j.name, "-o", "yaml"},
			{"get", "pods", "-n", namespace, "-o", "wide"},
			{"get", "events", "-n", namespace, "--field-selector=involvedObject.name=" + j.name, "--sort-by=.lastTimestamp"},
			{"logs", "-n", namespace, "-l", v1alpha1.LabelGang + "=" + j.name, "--tail=40", "--prefix"},
			{"logs", "-n", v1alpha1.Namespace, "-l", "app.kubernetes.io/name=holdfast-controller", "--tail=40", "--prefix", "--all-containers"},
		} {
			out, err := j.RunKubectl(ctx, args...)
			j.Say("%s: kubectl %s: %v\n%s", j.name, strings.Join(args, " "), err, out)
		}
	}
	if _, err := j.RunKubectl(ctx, "delete", "job", j.name, "-n", namespace, "--wait=false"); err != nil {
		t.Error(err)
	}
}

// until waits until the Gang is as wanted. All that is reported meanwhile goes into the row.
func (j *job) until(ctx context.Context, t *testing.T, what string, holds func(context.Context, *v1alpha1.Gang) (bool, string)) {
	t.Helper()
	if err := j.Until(ctx, j.name+": "+what, eventually.Timeout, func(ctx context.Context) (bool, string) {
		g, err := j.Gang(ctx, namespace, j.name)
		if err != nil {
			return false, err.Error()
		}
		j.note(ctx, g)
		ok, seen := holds(ctx, g)
		return ok, seen + "; " + harness.Says(g) + j.row.String()
	}); err != nil {
		t.Fatal(err)
	}
}

// note records what the Gang shows.
func (j *job) note(ctx context.Context, g *v1alpha1.Gang) {
	if j.quiet.IsZero() {
		if folder, err := j.SharedPath(ctx, namespace, shared); err == nil {
			if file, err := os.Stat(filepath.Join(folder, j.name, "quiet")); err == nil {
				j.quiet = file.ModTime()
			}
		}
	}
	r := g.Status.Run
	if r == nil {
		return
	}
	if s := r.Progress.Standstill; s != nil && !j.quiet.IsZero() {
		j.row.taken(s.Verdict, s.Message, time.Since(j.quiet))
	}
	for _, c := range r.Recoveries[min(len(r.Recoveries), j.row.Restarts):] {
		at := c.DetectedAt.Time
		if c.DetectMs != nil {
			at = at.Add(time.Duration(*c.DetectMs) * time.Millisecond)
		}
		j.row.ended(c.Cause.Code, c.Cause.Message, at.Sub(j.quiet))
	}
}

// steps waits until all ranks have made so many steps in their present process.
func (j *job) steps(ctx context.Context, t *testing.T, generation, n int64) {
	t.Helper()
	j.until(ctx, t, fmt.Sprintf("%d steps in generation %d", n, generation), func(_ context.Context, g *v1alpha1.Gang) (bool, string) {
		r := g.Status.Run
		return r.Generation == generation && r.Progress.OptimizerSteps >= n, fmt.Sprintf("generation %d, %d steps", r.Generation, r.Progress.OptimizerSteps)
	})
}

// verdict waits until one of the expected verdicts is reported, and demands its text and that it came in time.
func (j *job) verdict(ctx context.Context, t *testing.T) {
	t.Helper()
	is := func(s seen) bool { return slices.Contains(j.taken, s.Verdict) && strings.Contains(s.Text, j.says) }
	j.until(ctx, t, fmt.Sprintf("a verdict of %q with %q", j.taken, j.says), func(context.Context, *v1alpha1.Gang) (bool, string) {
		return slices.ContainsFunc(j.row.Seen, is), ""
	})
	if first := j.row.Seen[slices.IndexFunc(j.row.Seen, is)]; first.After > inTime.Seconds() {
		t.Errorf("the verdict came %.1f s after the last step, not within %s", first.After, inTime)
	}
}

// finishes waits until the Job is complete, and demands that nothing was taken for anything else than expected, that it restarted so many
// times, and that all containers are those that began.
func (j *job) finishes(ctx context.Context, t *testing.T, restarts int) {
	t.Helper()
	j.until(ctx, t, "the job is complete", func(_ context.Context, g *v1alpha1.Gang) (bool, string) {
		return g.Status.Phase == v1alpha1.PhaseFinished || g.Status.Phase == v1alpha1.PhaseFailed || j.row.Restarts > restarts, string(g.Status.Phase)
	})
	list, err := j.Pods(ctx, namespace, j.name)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if n := p.Status.ContainerStatuses[0].RestartCount; n != 0 || !slices.ContainsFunc(j.shape.Assignments, func(a harness.Assignment) bool { return a.UID == string(p.UID) }) {
			t.Errorf("pod %s: %d restarts, the first pods were %+v", p.Name, n, j.shape.Assignments)
		}
	}
	if j.row.Restarts != restarts {
		t.Errorf("%d restarts, want %d", j.row.Restarts, restarts)
	}
	for _, s := range j.row.Seen {
		if !slices.Contains(j.taken, s.Verdict) {
			t.Errorf("was taken for %s: %s", s.Verdict, s.Text)
		}
	}
	live, err := j.Kube().BatchV1().Jobs(namespace).Get(ctx, j.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s := live.Status; s.Failed != 0 && restarts == 0 {
		t.Errorf("the Job counted %d failures", s.Failed)
	}
}

// rank returns the process of a rank.
func (j *job) rank(ctx context.Context, t *testing.T, rank int) harness.Process {
	t.Helper()
	p, err := j.Find(ctx, namespace, j.shape.Assignments[rank/perPod].Pod, container, func(p harness.Process) bool {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.Host))
		return err == nil && strings.Contains("\x00"+string(environ), fmt.Sprintf("\x00RANK=%d\x00", rank)) && slices.Contains(p.Args, "/trainer/lesson.py")
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// over ends a job that the test stops from outside.
func (j *job) over(ctx context.Context, t *testing.T) {
	t.Helper()
	folder, err := j.SharedPath(ctx, namespace, shared)
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, j.name, "over"), nil, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
