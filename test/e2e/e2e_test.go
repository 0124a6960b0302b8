package e2e

import (
	"context"
	"errors"
	"testing"

	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/harness"
	"holdfast.dev/holdfast/test/story"
)

// TestHoldfast plays the story, which installs everything; the other promises are tested on the same cluster while the story waits.
func TestHoldfast(t *testing.T) {
	t.Parallel() // the other test waits for its own cluster
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w := &story.World{Cluster: harness.Start(t, devcluster.Options{Name: "e2e", Nodes: 3, Replace: true})}
	played := false
	w.WhileWarming = func(ctx context.Context) error {
		played = true
		return others(ctx, t, w)
	}
	testStory(ctx, t, w)
	if !played {
		t.Error("the story never waited: the other promises were not looked at")
	}
}

// others tests the promises outside of the story.
func others(ctx context.Context, t *testing.T, w *story.World) error {
	for _, part := range []struct {
		name string
		test func(context.Context, *testing.T, *story.World)
	}{
		{"BugUnderOnFailure", testBugOnFailure},
		{"Refusals", testRefusals},
		{"UnknownKinds", testUnknownKinds},
		{"RefusalInsideShell", testShellRefusal},
		{"Untouched", testUntouched},
		{"People", testPeople},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(ctx, t, w) })
	}
	if t.Failed() {
		return errors.New("a promise beside the story does not hold")
	}
	return nil
}
