package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/test/bench/figure"
	"holdfast.dev/holdfast/test/bench/figure/figuretest"
)

func TestOnlySlowRivalsAreNotRepeated(t *testing.T) {
	for _, c := range []struct {
		repeat figure.Count
		system string
		took   time.Duration
		want   bool
	}{
		{0, systemNative, slow, true},
		{0, systemNative, slow + 1, false},
		{2, systemNative, slow + 1, true},
		{0, systemRaw, slow + 1, true},
		{0, systemRawJob, slow + 1, true},
		{0, systemHoldfast, slow + 1, true},
		{0, systemJob, slow + 1, true},
	} {
		if got := (options{repeat: c.repeat}).repeats(c.system, c.took); got != c.want {
			t.Errorf("%s after %s with --repeat=%d: repeated %v", c.system, c.took, c.repeat, got)
		}
	}
}

func TestOrderIsRotated(t *testing.T) {
	all := []string{"a", "b", "c"}
	for round, want := range []string{"a b c", "b c a", "c a b", "a b c"} {
		if got := strings.Join(rotated(all, round), " "); got != want {
			t.Errorf("round %d: %s, want %s", round, got, want)
		}
	}
}

// TestEveryGoalHasARow: a goal's row exists in a full run.
func TestEveryGoalHasARow(t *testing.T) {
	b := &bench{Set: figure.NewSet(benchName)}
	for _, k := range cases(false) {
		for _, metric := range []string{lastBound, withEvents, eventsAfter, visible, refusalWrites} {
			for _, s := range systems {
				if k.asks(s) {
					b.Add(k.name, s.name, metric, "s", 2)
				}
			}
		}
	}
	for _, g := range goals {
		if !figure.Has(b.lines(), g.Key) {
			t.Errorf("no row %v", g.Key)
		}
	}
}

// TestPodsAreAlike: systems' pods differ only by the scheduler's name and the keys of the group.
func TestPodsAreAlike(t *testing.T) {
	g := group{name: "gang-000", size: 4, gpus: gpusPerNode}
	for _, s := range systems {
		p, want := pod(g, 1), pod(g, 1)
		p.Spec.SchedulerName = s.scheduler
		if s.join != nil {
			s.join(p, g)
		}
		p.Spec.SchedulerName, p.Spec.SchedulingGroup = "", nil
		delete(p.Labels, "scheduling.x-k8s.io/pod-group")
		if s.name == systemPodGroup {
			delete(want.Labels, v1alpha1.LabelGang) // the PodGroup takes the place of all keys of the gang
			want.Annotations = map[string]string{}
		}
		if s.jobs {
			p.Spec = job(g).Spec.Template.Spec
			p.Spec.ServiceAccountName = ""
		}
		if !reflect.DeepEqual(p, want) {
			t.Errorf("%s: %+v", s.name, p)
		}
	}
}

// TestPodsOfJobsHaveTheirNames: a Job's pod counts as the pod of its slot.
func TestPodsOfJobsHaveTheirNames(t *testing.T) {
	for name, want := range map[string]string{"gang-000-17-x7k2p": podName("gang-000", 17), "gang-000-0-00000": podName("gang-000", 0), "other": "other"} {
		if got := (system{jobs: true}).id(name); got != want {
			t.Errorf("%s counts as %s, want %s", name, got, want)
		}
	}
}

// TestSystemsHaveTheSameGates: every scheduler starts with the feature gate that Holdfast ships with, and otherwise only with gates for its
// own gangs and racks.
func TestSystemsHaveTheSameGates(t *testing.T) {
	deployment, err := os.ReadFile("../../../manifests/scheduler/deployment.yaml")
	if err != nil || !strings.Contains(string(deployment), "- --feature-gates="+gate+"\n") {
		t.Errorf("Holdfast is not shipped with %s, %v", gate, err)
	}
	name, value, _ := strings.Cut(collections, "=")
	if !strings.Contains(string(deployment), fmt.Sprintf("- {name: %s, value: %q}\n", name, value)) {
		t.Errorf("Holdfast is not shipped with %s", collections)
	}
	own := map[string][]string{systemNative: {"GenericWorkload=true", "TopologyAwareWorkloadScheduling=true"}}
	started := 0
	for _, s := range systems {
		if s.binary == "" {
			continue
		}
		started++
		for _, racks := range []bool{false, true} {
			var gates []string
			for _, arg := range s.args(&plane{dir: "/d", kubeconfig: "/k"}, "/c", 1, racks) {
				if list, ok := strings.CutPrefix(arg, "--feature-gates="); ok {
					gates = append(gates, strings.Split(list, ",")...)
				}
			}
			if !slices.Contains(gates, gate) {
				t.Errorf("%s, racks %v: is started with %v, without %s", s.name, racks, gates, gate)
			}
			for _, g := range gates {
				if g != gate && !slices.Contains(own[s.name], g) {
					t.Errorf("%s, racks %v: is started with %s, the others are not", s.name, racks, g)
				}
			}
		}
	}
	if started < 4 {
		t.Errorf("%d systems have a scheduler, so this test misses them", started)
	}
}

func TestVerify(t *testing.T) {
	at := func(name, node string) corev1.Pod {
		p := corev1.Pod{}
		p.Name, p.Spec.NodeName = name, node
		return p
	}
	must, never := map[string]bool{"a": true, "b": true}, map[string]bool{"x": true}
	for _, c := range []struct {
		name, problem string
		pods          []corev1.Pod
	}{
		{"as asked", "", []corev1.Pod{at("a", "1"), at("b", "2"), at("x", "")}},
		{"one waits", "pod b is on no node", []corev1.Pod{at("a", "1"), at("b", ""), at("x", "")}},
		{"two on a node", "both on node 1", []corev1.Pod{at("a", "1"), at("b", "1"), at("x", "")}},
		{"one too many", "pod x", []corev1.Pod{at("a", "1"), at("b", "2"), at("x", "3")}},
		{"one is gone", "there are 2 pods", []corev1.Pod{at("a", "1"), at("b", "2")}},
	} {
		err := verify(c.pods, must, never)
		if (c.problem == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.problem)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestCasesFit(t *testing.T) {
	for _, quick := range []bool{true, false} {
		for _, k := range cases(quick) {
			pods := 0
			for _, g := range k.groups {
				if g.fits(k.nodes) {
					pods += g.size
				}
			}
			if pods > k.nodes {
				t.Errorf("%s: %d pods that should fit on %d nodes", k.name, pods, k.nodes)
			}
		}
	}
}

func TestWritesAreCounted(t *testing.T) {
	text := []byte(`rest_client_requests_total{code="201",host="h",method="POST"} 1250
rest_client_requests_total{code="200",host="h",method="GET"} 7
rest_client_requests_total{code="200",host="h",method="PATCH"} 2
`)
	var all []string
	for _, m := range written.FindAllSubmatch(text, -1) {
		all = append(all, string(m[2]))
	}
	if !slices.Equal(all, []string{"1250", "2"}) {
		t.Errorf("%v", all)
	}
}

func TestDomainsAreLookedAt(t *testing.T) {
	tr := &trial{k: kase{nodes: 2 * rackSize}}
	in := func(nodes ...int) (pods []corev1.Pod) {
		for slot, n := range nodes {
			p := pod(group{name: "g", size: len(nodes), gpus: gpusPerNode, rack: true}, slot)
			p.Spec.NodeName = node(n, tr.first).Name
			pods = append(pods, *p)
		}
		return pods
	}
	if err := tr.domains(in(0, 5, rackSize-1)); err != nil {
		t.Error(err)
	}
	if err := tr.domains(in(0, rackSize)); err == nil || !strings.Contains(err.Error(), "gang g asked for one rack") {
		t.Error(err)
	}
}

// TestRefusedOptions: an option without effect is refused before anything is started.
func TestRefusedOptions(t *testing.T) {
	figuretest.Refused(t, command, []figuretest.Option{
		{Args: []string{"--repeat=0"}, Want: `for "--repeat" flag: give a whole number, at least 1`},
		{Args: []string{"--repeat=many"}, Want: `for "--repeat" flag: give a whole number, at least 1`},
		{Args: []string{"--cases="}, Want: `there is no "": name some of 1250x1250,`},
		{Args: []string{"--cases=1x1"}, Want: `there is no "1x1": name some of 1250x1250,`},
		{Args: []string{"--systems=volcano"}, Want: `there is no "volcano": name some of raw, plain,`},
		{Args: []string{"--cases=mix,refused", "--systems=raw,plain"}, Want: "--systems: none of them can be asked for case refused, raw: it decides nothing"},
		{Args: []string{"--writes", "--cases=mix"}, Want: "--writes: --cases, --systems and --repeat have no effect with it: leave them out"},
		{Args: []string{"--source="}, Want: `for "--source" flag: give a path`},
		{Args: []string{"mix"}, Want: `unknown command "mix"`},
	})
}

// TestUnfinishedTrialsHaveNoFigures: a failed system, and every system of an interrupted case, keeps no figures. Here there is no binary to
// start.
func TestUnfinishedTrialsHaveNoFigures(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, want := range []string{"[other]", "[]"} {
		b := &bench{
			Set:      figure.NewSet("scheduler"),
			progress: io.Discard,
			options:  options{repeat: 2, Common: figure.Common{Source: figure.Path(t.TempDir())}},
		}
		b.Add("k", "other", lastBound, "s", 1)
		b.Add("k", systemRaw, lastBound, "s", 1)
		err := b.run(ctx, kase{name: "k"}, []system{{name: systemRaw}})
		left := []string{}
		for _, k := range b.Keys() {
			left = append(left, k.System)
		}
		if got := fmt.Sprint(left); err == nil || got != want || strings.Count(err.Error(), "no figures") > 1 {
			t.Errorf("rows of %s, want %s; %v", got, want, err)
		}
		cancel()
	}
}

// TestWhatASystemCannotIsSaid: a system that does not support a case is reported with the reason, and adds no sample.
func TestWhatASystemCannotIsSaid(t *testing.T) {
	var progress strings.Builder
	b := &bench{Set: figure.NewSet(benchName), progress: &progress, options: options{repeat: 1}}
	plain := systems[slices.IndexFunc(systems, func(s system) bool { return s.name == systemPlain })]
	if err := b.run(t.Context(), kase{name: "k", cannot: map[string]string{systemPlain: noGangs}}, []system{plain}); err != nil {
		t.Fatal(err)
	}
	if got := b.Figures(); len(got) != 1 || got[0].System != systemPlain || got[0].Metric != "can" || got[0].Value != 0 ||
		!strings.Contains(progress.String(), "cannot: "+noGangs) {
		t.Errorf("%+v\n%s", got, &progress)
	}
	for _, k := range cases(false) {
		for name, why := range k.cannot {
			if why == "" || name == systemHoldfast || !slices.ContainsFunc(systems, func(s system) bool { return s.name == name }) {
				t.Errorf("%s, %s: %q", k.name, name, why)
			}
		}
	}
}

func TestEventsBelongToTheFinishLine(t *testing.T) {
	bound := func(name string) *corev1.Pod {
		p := &corev1.Pod{}
		p.Name, p.Spec.NodeName = name, "n"
		return p
	}
	event := func(pod, reason string) *corev1.Event {
		return &corev1.Event{InvolvedObject: corev1.ObjectReference{Name: pod}, Reason: reason}
	}
	w := &watched{
		id: system{}.id, left: map[string]bool{"a": true, "b": true}, untold: map[string]bool{"a": true, "b": true}, news: make(chan struct{}, 1),
	}
	w.pod(bound("a"))
	w.event(event("a", scheduledReason))
	w.pod(bound("b"))
	w.event(event("b", "FailedScheduling"))
	w.event(event("x", scheduledReason))
	if len(w.left) != 0 || len(w.untold) != 1 || !w.untold["b"] {
		t.Errorf("not bound %v, not reported %v", w.left, w.untold)
	}
	w.event(event("b", scheduledReason))
	if last, missing, err := w.allTold(t.Context()); missing != 0 || err != nil || last != w.lastTold || last.Before(w.lastBound) {
		t.Errorf("reported by %v, %d missing, %v", last, missing, err)
	}
	w.untold["c"], w.lastBound, w.lastTold = true, w.lastBound.Add(-2*toldQuiet), w.lastTold.Add(-2*toldQuiet)
	if _, missing, err := w.allTold(t.Context()); missing != 1 || err != nil {
		t.Errorf("%d missing, %v", missing, err)
	}
}

// TestRefusalsCountFromTheGangsLastPod: pods of other gangs that are created later do not make a refusal look earlier.
func TestRefusalsCountFromTheGangsLastPod(t *testing.T) {
	k := kase{nodes: 2, groups: slices.Concat(gangsOf(2, 3, 2*gpusPerNode, "never"), gangs(1, 2, "fits"), []group{{size: 2, gpus: 2 * gpusPerNode}})}
	tr := &trial{k: k, plane: &plane{client: fake.NewClientset()}}
	for _, g := range k.groups {
		for slot := range g.size {
			tr.pods = append(tr.pods, pod(g, slot))
		}
	}
	if err := tr.create(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"never-000", "never-001"} {
		if at := tr.whole[name]; at.Before(tr.first) || at.After(tr.last) {
			t.Errorf("gang %s was complete at %s, pods were created from %s to %s", name, at, tr.first, tr.last)
		}
	}
	if len(tr.whole) != 2 {
		t.Errorf("to be refused are %v", tr.whole)
	}
	w := &watched{refused: map[string]time.Time{}, news: make(chan struct{}, 1)}
	for name, after := range map[string]time.Duration{"never-000": 2 * time.Second, "never-001": -time.Second, "other": time.Hour} {
		w.refused[name] = tr.whole[name].Add(after)
	}
	tr.whole["never-001"] = tr.whole["never-001"].Add(time.Minute)
	for want, whole := range map[time.Duration]map[string]time.Time{
		2 * time.Second:            tr.whole,
		-time.Minute - time.Second: {"never-001": tr.whole["never-001"]},
	} {
		if got, err := w.allRefused(t.Context(), whole); err != nil || got != want {
			t.Errorf("the longest wait of %v was %s, want %s, %v", whole, got, want, err)
		}
	}
	tr.whole["silent"] = tr.last
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := w.allRefused(ended, tr.whole); err == nil {
		t.Errorf("a gang without an answer waited %s", got)
	}
}
