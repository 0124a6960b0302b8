package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"holdfast.dev/holdfast/test/story"
)

// TestHoldfast plays the story, which installs everything; the other promises are looked at on the same cluster where the story waits.
func TestHoldfast(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("LEFT OUT: end-to-end tests need Linux and root")
	}
	t.Parallel() // the other test waits for its cluster to come and go
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stage, err := story.SetStage(ctx, story.StageOptions{Name: "e2e", Nodes: 3, Source: source, Out: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := stage.Strike(); err != nil {
			t.Errorf("taking the cluster down: %v", err)
		}
	}()
	played := false
	stage.WhileWarming = func(ctx context.Context) error {
		played = true
		return others(ctx, t, stage.World)
	}
	testStory(ctx, t, stage.World)
	if !played {
		t.Error("the story never waited: the other promises were not looked at")
	}
}

// others are the promises beside the story.
func others(ctx context.Context, t *testing.T, w *story.World) error {
	for _, part := range []struct {
		name string
		test func(context.Context, *testing.T, *story.World)
	}{
		{"BugUnderOnFailure", testBugOnFailure},
		{"Refusals", testRefusals},
		{"RefusalInsideShell", testShellRefusal},
		{"Untouched", testUntouched},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(ctx, t, w) })
	}
	if t.Failed() {
		return errors.New("a promise beside the story does not hold")
	}
	return nil
}
