package hang

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/devcluster/layout"
	"holdfast.dev/holdfast/test/harness"
)

const (
	namespace, shared, container = "hang", "shared", "trainer"
	pods, perPod                 = 2, 2
	// gpus is how many simulated GPUs each node of devcluster has.
	gpus = 2
	// run runs a script on all pods.
	run = "torchrun --nnodes=%d --nproc-per-node=%d --master-addr=none --master-port=29500 /trainer/%s "
	// venv has the frameworks; hack/launchers.sh makes it.
	venv = "/opt/holdfast-launchers"
	// atOnce is how many jobs run at a time: with more, two cores are too busy for a silence to be one.
	atOnce = 3
)

//go:embed lesson.py
var lesson string

//go:embed many.py
var many string

//go:embed hf.py
var hf string

//go:embed lit.py
var lit string

// silence is one way in which the ranks of a job make no step.
type silence struct {
	// name is the job's. script is what lesson.py calls the silence, "" if that is the name; it does nothing for one that the test does from
	// outside.
	name, script string
	// framework is the script of a framework that is run instead; "": lesson.py.
	framework string
	// what happens, for readers of docs/annotations.md.
	what string
	// apart: each pod has a node for itself.
	apart bool
	// settings are further annotations.
	settings map[string]string
	// taken are the verdicts that may be reported of it, the first one must be, and says is in its text.
	taken []string
	says  string
	// within is how long after the last step the verdict is due, if not inTime.
	within time.Duration
	// plays is the test, while the job runs.
	plays func(context.Context, *testing.T, *job)
}

// world is a cluster whose nodes have the folder mute, and slow storage at slow.
type world struct {
	*harness.Cluster
	mute *muteFolder
	slow string
}

// start starts a cluster that has all that the jobs need.
func start(ctx context.Context, t *testing.T) *world {
	t.Helper()
	mute, slow := mount(t), mountSlow(t)
	c := harness.Start(t, devcluster.Options{Name: "hang", Nodes: 2, Replace: true})
	if err := c.Install(ctx); err != nil {
		t.Fatal(err)
	}
	for _, o := range harness.TrainerRoom(namespace) {
		if m, ok := o.(*corev1.ConfigMap); ok {
			m.Data = map[string]string{"lesson.py": lesson, "many.py": many, "hf.py": hf, "lit.py": lit}
		}
		if err := c.Client().Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	return &world{c, mute, slow}
}

// play plays silences, each as soon as there is room.
func play(ctx context.Context, t *testing.T, w *world, room chan bool, all []silence) {
	var running sync.WaitGroup
	defer running.Wait()
	for _, s := range all {
		room <- true
		running.Go(func() { // t.Parallel would run only as many as there are cores
			defer func() { <-room }()
			t.Run(s.name, func(t *testing.T) {
				if _, err := os.Stat(filepath.Join(venv, ".ready")); s.framework != "" && err != nil {
					t.Skipf("SKIPPED: there is no %s: hack/launchers.sh makes it", venv)
				}
				j := begin(ctx, t, w, s)
				s.plays(ctx, t, j)
				for _, seen := range j.row.Seen {
					if !slices.Contains(s.taken, seen.Verdict) {
						t.Errorf("was taken for %s: %s", seen.Verdict, seen.Text)
					}
				}
				j.row.write(t)
			})
		})
	}
}

// job is one job with its silence.
type job struct {
	*world
	silence
	// folder is on this machine what lesson.py calls FOLDER.
	folder string
	// shape is the job's pods once all had started.
	shape harness.Shape
	row   row
	// quiet is when the ranks stopped making steps; zero: not yet.
	quiet time.Time
}

func begin(ctx context.Context, t *testing.T, w *world, s silence) *job {
	t.Helper()
	j := &job{world: w, silence: s, row: row{Name: s.name, What: s.what, Part: filepath.Base(filepath.Dir(t.Name()))}}
	j.create(ctx, t, s.pod(w))
	return j
}

// pod is a pod of the silence's job.
func (s *silence) pod(w *world) corev1.PodSpec {
	if s.framework == "" {
		spec := pod(fmt.Sprintf(run+"/%s/%s %s", pods, perPod, "lesson.py", shared, s.name, cmp.Or(s.script, s.name)))
		harness.HostFolder(&spec, "mute", w.mute.path, "/mute")
		if s.apart {
			all := resource.NewQuantity(gpus, resource.DecimalSI)
			resources := &spec.Containers[0].Resources
			resources.Limits[layout.GPUResource], resources.Requests[layout.GPUResource] = *all, *all
		}
		return spec
	}
	command := "env PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 HOME=/tmp " + venv + "/bin/" + run + "/%s/%s /slow"
	spec := pod(fmt.Sprintf(command, pods, perPod, s.framework, shared, s.name))
	harness.HostFolder(&spec, "venv", venv, venv)
	harness.HostFolder(&spec, "slow", w.slow, "/slow")
	mounts := spec.Containers[0].VolumeMounts
	mounts[len(mounts)-1].ReadOnly = false
	return spec
}

// pod is a pod whose command finds torchrun in its PATH, the scripts in /trainer, and a folder of all pods in /shared.
func pod(command string) corev1.PodSpec {
	spec := harness.TrainerPod(command, 5, 0)
	resources := &spec.Containers[0].Resources
	delete(resources.Limits, layout.GPUResource)
	delete(resources.Requests, layout.GPUResource)
	resources.Limits[corev1.ResourceMemory] = resource.MustParse("1536Mi")
	resources.Requests[corev1.ResourceMemory] = resource.MustParse("256Mi")
	spec.Volumes = append(spec.Volumes, harness.ClaimVolume(shared, false))
	spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: shared, MountPath: "/" + shared})
	return spec
}

// create creates the job with these pods, and waits until all run.
func (j *job) create(ctx context.Context, t *testing.T, spec corev1.PodSpec) {
	t.Helper()
	annotations := map[string]string{v1alpha1.AnnotationEnabled: "true", v1alpha1.AnnotationHang: "act", v1alpha1.AnnotationStandbys: "off"}
	maps.Copy(annotations, j.settings)
	if err := j.Client().Create(ctx, harness.Job(namespace, j.name, pods, 0, annotations, spec)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.remove(t) })
	j.until(ctx, t, "all pods run", func(ctx context.Context, g *v1alpha1.Gang) (bool, string) {
		var err error
		j.shape, err = j.Shape(ctx, g)
		full := !slices.ContainsFunc(j.shape.Assignments, func(a harness.Assignment) bool { return a.Container == "" })
		return err == nil && full && g.Status.Run != nil && g.Status.Run.Generation == 1, fmt.Sprintf("%+v, %v", j.shape, err)
	})
	folder, err := j.SharedPath(ctx, namespace, shared)
	if err != nil {
		t.Fatal(err)
	}
	j.folder = filepath.Join(folder, j.name)
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
		j.note(g)
		ok, seen := holds(ctx, g)
		return ok, seen + "; " + harness.Says(g) + j.row.String()
	}); err != nil {
		t.Fatal(err)
	}
}

// note records what the Gang shows.
func (j *job) note(g *v1alpha1.Gang) {
	if file, err := os.Stat(filepath.Join(j.folder, "quiet")); err == nil {
		j.quiet = file.ModTime()
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

// lasts waits until the silence has lasted so long.
func (j *job) lasts(ctx context.Context, t *testing.T, d time.Duration) {
	t.Helper()
	j.until(ctx, t, fmt.Sprintf("the silence has lasted %s", d), func(context.Context, *v1alpha1.Gang) (bool, string) {
		return !j.quiet.IsZero() && time.Since(j.quiet) > d, ""
	})
}

// steps waits until all ranks have made so many steps in their present process.
func (j *job) steps(ctx context.Context, t *testing.T, generation, n int64) {
	t.Helper()
	j.until(ctx, t, fmt.Sprintf("%d steps in generation %d", n, generation), func(_ context.Context, g *v1alpha1.Gang) (bool, string) {
		r := g.Status.Run
		made := r.Progress.OptimizerSteps
		return r.Generation == generation && made >= n, fmt.Sprintf("generation %d, %d steps", r.Generation, made)
	})
}

// verdict waits until the expected verdict is reported, and demands its text and that it came in time.
func (j *job) verdict(ctx context.Context, t *testing.T) {
	t.Helper()
	is := func(s seen) bool { return s.Verdict == j.taken[0] && strings.Contains(s.Text, j.says) }
	j.until(ctx, t, fmt.Sprintf("verdict %s with %q", j.taken[0], j.says), func(context.Context, *v1alpha1.Gang) (bool, string) {
		return slices.ContainsFunc(j.row.Seen, is), ""
	})
	if first := j.row.Seen[slices.IndexFunc(j.row.Seen, is)]; first.After > cmp.Or(j.within, inTime).Seconds() {
		t.Errorf("the verdict came %.1f s after the last step, not within %s", first.After, cmp.Or(j.within, inTime))
	}
}

// finishes waits until the job is over, and demands that it ended for that reason, that its ranks restarted so many times, and that all
// containers are those that began.
func (j *job) finishes(ctx context.Context, t *testing.T, reason string, restarts int) {
	t.Helper()
	j.until(ctx, t, "the job is over", func(_ context.Context, g *v1alpha1.Gang) (bool, string) {
		v := g.Status.Run.Verdict
		if v != nil {
			j.row.Result = v.Reason
		}
		return v != nil || j.row.Restarts > restarts, string(g.Status.Phase)
	})
	list, err := j.Pods(ctx, namespace, j.name)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != pods {
		t.Errorf("%d pods, want the first %d", len(list), pods)
	}
	for _, p := range list {
		if n := p.Status.ContainerStatuses[0].RestartCount; n != 0 {
			t.Errorf("the container of %s was restarted %d times", p.Name, n)
		}
		if !slices.ContainsFunc(j.shape.Assignments, func(a harness.Assignment) bool { return a.UID == string(p.UID) }) {
			t.Errorf("pod %s is not one of the first: %+v", p.Name, j.shape.Assignments)
		}
	}
	if j.row.Restarts != restarts || j.row.Result != reason {
		t.Errorf("%q after %d restarts, want %q after %d", j.row.Result, j.row.Restarts, reason, restarts)
	}
}

// address returns the IP address of the pod in a slot.
func (j *job) address(ctx context.Context, t *testing.T, slot int) string {
	t.Helper()
	list, err := j.Pods(ctx, namespace, j.name)
	if err != nil {
		t.Fatal(err)
	}
	return list[slices.IndexFunc(list, func(p corev1.Pod) bool { return p.Name == j.shape.Assignments[slot].Pod })].Status.PodIP
}

// rank returns the process of a rank.
func (j *job) rank(ctx context.Context, t *testing.T, rank int) harness.Process {
	t.Helper()
	variable := fmt.Sprintf("\x00RANK=%d\x00", rank)
	p, err := j.Find(ctx, namespace, j.shape.Assignments[rank/perPod].Pod, container, func(p harness.Process) bool {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.Host))
		return err == nil && strings.Contains("\x00"+string(environ), variable) && slices.Contains(p.Args, "/trainer/lesson.py")
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// over ends a job that the test stops from outside.
func (j *job) over(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(j.folder, "over"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}
