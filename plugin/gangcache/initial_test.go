package gangcache

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"holdfast.dev/holdfast/plugin/plugintest"
)

// A gang that was never complete has lost no member: it is not placed before gangs that have.
func TestInitialPlacementIsNotDegraded(t *testing.T) {
	l, pods := newCache(), plugintest.Gang("g", 2, 1)
	for _, p := range pods {
		enter(l, p)
	}
	if !l.Open(key("g"), map[types.UID]string{pods[0].UID: "a", pods[1].UID: "b"}, at(1)) || !l.Reserve(key("g"), pods[0], "a") {
		t.Fatal("the plan is not followed")
	}
	l.Observe(key("g"), on(pods[0].DeepCopy(), "a"))
	l.GiveUp(key("g"))
	of, missing := l.PlanInput(key("g"))
	if missing != nil || of.Degraded() {
		t.Errorf("missing %v, degraded %v", missing, of.Degraded())
	}
	if of.Turn.Key.Degraded != of.Degraded() {
		t.Errorf("the queue says %+v", of.Turn)
	}
}
