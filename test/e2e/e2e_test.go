package e2e

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"holdfast.dev/holdfast/test/story"
)

// TestHoldfast plays the story first, because it installs everything; the other promises follow on the same cluster.
func TestHoldfast(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("LEFT OUT: end-to-end tests need Linux and root")
	}
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
	for _, part := range []struct {
		name string
		test func(context.Context, *testing.T, *story.World)
	}{
		{"Story", testStory},
		{"BugUnderOnFailure", testBugOnFailure},
		{"Refusals", testRefusals},
		{"RefusalInsideShell", testShellRefusal},
		{"Untouched", testUntouched},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.test(ctx, t, stage.World) }) && part.name == "Story" {
			return
		}
	}
}
