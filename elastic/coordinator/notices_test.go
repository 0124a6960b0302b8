package coordinator

import (
	"slices"
	"testing"

	"holdfast.dev/holdfast/elastic"
)

func TestNoticesOfOneReasonAreOneEvent(t *testing.T) {
	got := joined([]elastic.Notice{
		{Warning: true, Reason: "StandsStill", Message: "no step"},
		{Warning: true, Reason: "Recovering", Message: "ended"},
		{Reason: "StandsStill", Message: "is over"},
		{Warning: true, Reason: "StandsStill", Message: "is only reported"},
	})
	want := []elastic.Notice{
		{Warning: true, Reason: "StandsStill", Message: "no step\nis only reported"},
		{Warning: true, Reason: "Recovering", Message: "ended"},
		{Reason: "StandsStill", Message: "is over"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
