package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"holdfast.dev/holdfast/internal/golden"
)

// TestScripts plays testdata/*.txt; the commands are
//
//	pods N [model]              pods w-0, w-1, … on nodes n0, n1, …
//	accused POD N
//	alone POD wrong|failed|slow
//	bad POD                     fails in each pair
//	slow POD                    halves the speed of each pair
//	cut POD POD                 this pair fails
//	lost POD ROUND N            the pod's next N answers of a round are lost
//	late POD ROUND N            the pod's imports are late in its next N attempts of a round
//	kind POD DEVICES BACKEND    what the pod requests ("-": none), and what its torch uses
//	replace POD                 another pod without a fault takes the place
//	play                        asks and answers round after round, prints each round and the verdict
func TestScripts(t *testing.T) {
	golden.Scripts(t, "testdata/*.txt", func(t *testing.T, out *strings.Builder) func(string) {
		w := &world{}
		return func(line string) { script(t, w, out, strings.Fields(line)) }
	})
}

func script(t *testing.T, w *world, out *strings.Builder, f []string) {
	number := func(i int) int {
		n, err := strconv.Atoi(f[i])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	switch f[0] {
	case "pods":
		*w = *newWorld(number(1))
		for i := range w.pods {
			w.pods[i].Model = "H200"
		}
	case "accused":
		w.pods[number(1)].Accusations = number(2)
	case "alone":
		w.faults[number(1)] = map[string]fault{"wrong": faultWrong, "failed": faultAlone, "slow": faultSlowAlone}[f[2]]
	case "kind":
		w.pods[number(1)].Devices, w.pods[number(1)].Backend = strings.Trim(f[2], "-"), f[3]
	case "bad":
		w.faults[number(1)] = faultPairs
	case "slow":
		w.faults[number(1)] = faultSlowPairs
	case "cut":
		w.cut[[2]int{number(1), number(2)}], w.cut[[2]int{number(2), number(1)}] = true, true
	case "lost":
		w.meet(Lost, number(1), number(2), number(3))
	case "late":
		w.meet(Late, number(1), number(2), number(3))
	case "replace":
		w.replace(number(1))
	case "play":
		v := w.play(t, func(p Plan) { fmt.Fprintf(out, "  round %d: %s\n", p.Round, list(p.Trials)) })
		print(out, v)
	default:
		t.Fatalf("unknown command %q", f[0])
	}
}

// meet makes the next n answers of a pod in a round so.
func (w *world) meet(o Outcome, pod, round, n int) {
	key := [2]int{pod, round}
	w.next[key] = append(w.next[key], slices.Repeat([]Outcome{o}, n)...)
}

func list(trials []Trial) string {
	var out []string
	for _, t := range trials {
		text := strconv.Itoa(t.A)
		if t.B >= 0 {
			text += "-" + strconv.Itoa(t.B)
		}
		if t.Attempt > 1 {
			text += fmt.Sprintf(" (attempt %d%s)", t.Attempt, map[bool]string{true: ", longer"}[t.Longer])
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

var kinds = map[Kind]string{Unproven: "Unproven", Good: "Good", ComputeWrong: "ComputeWrong", Guilty: "Guilty", Slow: "Slow", First: "First"}

func print(out *strings.Builder, v Verdict) {
	for _, f := range v.Findings {
		fmt.Fprintf(out, "  %d %s: %s\n", f.Pod, kinds[f.Kind], f.Evidence)
	}
	for _, p := range v.Paths {
		fmt.Fprintf(out, "  Path: %s\n", p)
	}
	switch {
	case v.Systemic != "":
		fmt.Fprintf(out, "  Systemic: %s\n", v.Systemic)
	case len(v.Findings) == 0:
		fmt.Fprintln(out, "  all good")
	}
}
