package plugin

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// A deletion is retried for as long as an API server takes to restart, and not for ever.
func TestHowLongADeletionIsTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, tries := time.Now(), 0
		err := wait.ExponentialBackoffWithContext(
			t.Context(),
			rollbackBackoff,
			func(context.Context) (bool, error) { tries++; return false, nil },
		)
		if took := time.Since(began); err == nil || tries != rollbackBackoff.Steps || took < 20*time.Second || took > 30*time.Second {
			t.Errorf("%d tries in %s, %v", tries, took, err)
		}
	})
}
