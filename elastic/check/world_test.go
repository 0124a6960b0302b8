package check

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"holdfast.dev/holdfast/internal/seeds"
)

type fault int

const (
	faultNone fault = iota
	faultWrong
	faultAlone
	faultPairs
	faultSlowAlone
	faultSlowPairs
)

var verdicts = map[fault]Kind{
	faultNone: Good, faultWrong: ComputeWrong, faultAlone: Guilty, faultPairs: Guilty, faultSlowAlone: Slow, faultSlowPairs: Slow,
}

// world is a gang with known faults, which answers trials.
type world struct {
	pods   []Pod
	faults []fault
	cut    map[[2]int]bool
	next   map[[2]int][]Outcome // the pod's next answers of a round that are lost or late
	random *rand.Rand
}

func newWorld(n int) *world {
	w := &world{pods: make([]Pod, n), faults: make([]fault, n), cut: map[[2]int]bool{}, next: map[[2]int][]Outcome{}}
	for i := range w.pods {
		w.pods[i] = Pod{ID: fmt.Sprintf("uid-%d", i), Name: fmt.Sprintf("w-%d", i), Node: fmt.Sprintf("n%d", i)}
	}
	return w
}

func (w *world) replace(i int) {
	p := &w.pods[i]
	p.ID, p.Name, p.Node, p.Answers = p.ID+"'", p.Name+"'", p.Node+"'", nil
	w.faults[i] = faultNone
}

// play asks and answers until the verdict.
func (w *world) play(t testing.TB, see func(Plan)) Verdict {
	for range 200 {
		p := Judge(w.pods, nil)
		if p.Over() {
			return p.Verdict
		}
		see(p)
		w.answer(t, p.Trials)
	}
	t.Fatal("the check does not end")
	return Verdict{}
}

const (
	noise = 0.03 // of speeds, and the probability that a try fails without a fault
	tries = 3    // of one trial
	loss  = 0.01 // the probability that a pod's answer is lost
)

func (w *world) answer(t testing.TB, trials []Trial) {
	busy := map[int]bool{}
	for _, tr := range trials {
		if busy[tr.A] || tr.B >= 0 && busy[tr.B] || tr.A == tr.B {
			t.Fatalf("two trials of one pod at once: %v", trials)
		}
		if tr.B >= 0 && (w.pods[tr.A].Devices != w.pods[tr.B].Devices || w.pods[tr.A].Devices == "" && w.unlike(tr)) {
			t.Fatalf("pods %d and %d are of different kinds", tr.A, tr.B)
		}
		busy[tr.A], busy[tr.B] = true, true
		delete(busy, -1)
		out := w.result(tr)
		if tr.B < 0 {
			w.put(tr.A, tr, tr.B, w.lose(tr.A, tr, out))
			continue
		}
		a, b := w.lose(tr.A, tr, out), w.lose(tr.B, tr, out)
		// The partner of a process that is ended early waits in vain, once it has imported; the partner of one that is ended late has passed.
		if early := w.float() < 0.6; early && a.Outcome == Lost && b.Outcome != Lost && b.Outcome != Late {
			b = Answer{Outcome: Absent, Text: "the partner did not come within 20s"}
		} else if early && b.Outcome == Lost && a.Outcome != Lost && a.Outcome != Late {
			a = Answer{Outcome: Absent, Text: "the partner did not come within 20s"}
		}
		w.put(tr.A, tr, tr.B, a)
		w.put(tr.B, tr, tr.A, b)
	}
}

// unlike reports whether the pods of a pair have different backends.
func (w *world) unlike(tr Trial) bool {
	a, b := w.pods[tr.A].Backend, w.pods[tr.B].Backend
	return a != b && a != "" && b != ""
}

func (w *world) lose(i int, tr Trial, a Answer) Answer {
	key := [2]int{i, int(tr.Round)}
	if next := w.next[key]; len(next) > 0 {
		w.next[key] = next[1:]
		return map[Outcome]Answer{Lost: {Outcome: Lost}, Late: {Outcome: Late, Text: "part import did not end within 20s"}}[next[0]]
	}
	if w.random == nil || w.float() >= loss {
		return a
	}
	return Answer{Outcome: Lost}
}

// result is what happens in a trial.
func (w *world) result(tr Trial) Answer {
	speed := 100 * (1 + noise*(2*w.float()-1))
	a := Answer{Outcome: Passed, Speed: speed}
	if tr.B < 0 {
		switch w.faults[tr.A] {
		case faultWrong:
			a = Answer{Outcome: Wrong, Text: "the sum of device 0 is 4097, not 4096"}
		case faultAlone:
			a = Answer{Outcome: Failed, Text: "the copy to device 0 did not end within 15s"}
		case faultSlowAlone:
			a.Speed *= 0.8
		}
		return a
	}
	x, y := w.faults[tr.A], w.faults[tr.B]
	bad := x == faultPairs || y == faultPairs || w.cut[[2]int{tr.A, tr.B}]
	unlucky := w.random != nil
	for range tries {
		unlucky = unlucky && w.float() < noise
	}
	switch {
	case bad || unlucky:
		return Answer{Outcome: Failed, Text: "the exchange did not end within 20s"}
	case x == faultSlowPairs || y == faultSlowPairs:
		a.Speed *= 0.5
	}
	return a
}

func (w *world) put(i int, tr Trial, with int, a Answer) {
	a.Round, a.Attempt = tr.Round, tr.Attempt
	if with >= 0 {
		a.Partner = w.pods[with].ID
	}
	answers := w.pods[i].Answers
	before := slices.IndexFunc(answers, func(x Answer) bool { return x.Round == tr.Round })
	if before >= 0 && answers[before].Attempt == a.Attempt && answers[before].Partner == a.Partner && answers[before].Outcome != Lost {
		return // answered before the coordinator restarted
	}
	if before >= 0 {
		answers[before] = a
	} else {
		w.pods[i].Answers = append(answers, a)
	}
}

func (w *world) float() float64 {
	if w.random == nil {
		return 0.5
	}
	return w.random.Float64()
}

// restart forgets what the coordinator alone knew: which answers it waits for no longer.
func (w *world) restart() {
	for i := range w.pods {
		w.pods[i].Answers = slices.DeleteFunc(w.pods[i].Answers, func(a Answer) bool { return a.Outcome == Lost && w.float() < 0.5 })
	}
}

// gangs is how many gangs TestGangs plays; HOLDFAST_GANGS is another number, such as 100000.
const gangs = 1500

// TestGangs: up to a quarter of the pods, one of three, are at fault: each of them is named and no other pod. Coordinators and agents
// restart. Above that, no pod without a fault is named either, and most of the verdicts are Systemic.
func TestGangs(t *testing.T) {
	many := uint64(gangs)
	if text := os.Getenv("HOLDFAST_GANGS"); text != "" {
		if _, err := fmt.Sscan(text, &many); err != nil {
			t.Fatal(err)
		}
	}
	pods, named, systemic := 0, 0, 0
	for seed := range seeds.All(t, many) {
		w, above := randomWorld(seed)
		v := w.play(t, func(Plan) {
			if w.float() < 0.2 {
				w.restart()
			}
		})
		pods += len(w.pods)
		if v.Systemic != "" {
			systemic++
		}
		if above == (v.Systemic != "") || above {
			named += w.verify(t, v, above)
		} else {
			t.Errorf("seed %d, %d pods, %d at fault: Systemic: %s", seed, len(w.pods), w.atFault(), v.Systemic)
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d pods, %d named, %d gangs Systemic", pods, named, systemic)
}

// TestMixedGangs: no pod is paired with one of another kind (world.answer), and none without a fault is named.
func TestMixedGangs(t *testing.T) {
	named := 0
	for seed := range seeds.All(t, uint64(300)) {
		w, _ := randomWorld(seed)
		for i := range w.pods {
			kind := [][2]string{{"nvidia.com/gpu", "nccl"}, {"", "gloo"}, {"", "tcp"}}[w.random.IntN(3)]
			w.pods[i].Devices, w.pods[i].Backend = kind[0], kind[1]
		}
		for _, f := range w.play(t, func(Plan) {}).Findings {
			if f.Kind != Guilty && f.Kind != ComputeWrong {
				continue
			}
			if named++; verdicts[w.faults[f.Pod]] != f.Kind {
				t.Fatalf("seed %d: pod %d with fault %d is named: %s", seed, f.Pod, w.faults[f.Pod], f.Evidence)
			}
		}
	}
	if named == 0 {
		t.Error("no pod was named")
	}
	t.Logf("%d named", named)
}

// randomWorld has 3 to 5,000 pods; one gang of ten has more faults than a check names.
func randomWorld(seed uint64) (*world, bool) {
	r := rand.New(rand.NewPCG(seed, 1))
	n := 3 + r.IntN(14)
	if seed%3 == 0 {
		n = 3 + r.IntN(200)
	}
	if seed%10 == 0 {
		n = 3 + r.IntN(4998)
	}
	w := newWorld(n)
	w.random = r
	most, above := max(1, n/4), seed%10 == 7
	count := r.IntN(most + 1)
	if above {
		count = most + 1 + r.IntN(n-most)
	}
	for _, i := range r.Perm(n)[:count] {
		w.faults[i] = []fault{faultPairs, faultPairs, faultPairs, faultAlone, faultWrong}[r.IntN(5)]
	}
	if r.IntN(3) == 0 { // faults beside each other, as those of one rack
		slices.Reverse(w.faults)
		slices.SortFunc(w.faults[:n/2], func(a, b fault) int { return int(b - a) })
	}
	if n >= 16 && !above && seed%4 == 0 {
		w.slow()
	}
	return w, above
}

// slow makes one pod without a fault slow.
func (w *world) slow() {
	for i := range w.faults {
		if w.faults[i] == faultNone {
			w.faults[i] = []fault{faultSlowPairs, faultSlowAlone}[w.random.IntN(2)]
			return
		}
	}
}

func (w *world) atFault() int {
	n := 0
	for _, f := range w.faults {
		if f == faultWrong || f == faultAlone || f == faultPairs {
			n++
		}
	}
	return n
}

// verify returns how many pods are named; those that are have a fault, and those with a fault are unless there are too many.
func (w *world) verify(t *testing.T, v Verdict, above bool) int {
	t.Helper()
	kinds := make([]Kind, len(w.pods))
	for i := range kinds {
		kinds[i] = Good
	}
	for _, f := range v.Findings {
		kinds[f.Pod] = f.Kind
	}
	named := 0
	for i, f := range w.faults {
		want := verdicts[f]
		got := kinds[i]
		if got == Guilty || got == ComputeWrong || got == First {
			named++
		}
		blamed := named > 0 && (got == Guilty || got == ComputeWrong || got == First) && want != got
		if blamed || !above && want != got && !(want == Good && got == Unproven) {
			t.Errorf("%d pods, %d at fault: pod %d with fault %d is %d, want %d: %+v", len(w.pods), w.atFault(), i, f, got, want, v)
			return named
		}
	}
	return named
}

// BenchmarkPlan measures each round of 5,000 pods of which a fifth fails, and the verdict.
func BenchmarkPlan(b *testing.B) {
	w := newWorld(5000)
	w.random = rand.New(rand.NewPCG(1, 1))
	for i := range 1000 {
		w.faults[5*i] = faultPairs
	}
	step := func(name string) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Judge(w.pods, nil)
			}
		})
	}
	w.play(b, func(p Plan) { step(fmt.Sprintf("round%d", p.Round)) })
	step("verdict")
}
