package provision

import (
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func TestDecide(t *testing.T) {
	short := func(p Phase, attempt int) View {
		return View{Short: 4, Request: &Request{Name: "r", Class: "c", Pods: 4, Attempt: attempt, Phase: p, Since: noon}}
	}
	with := func(v View, change func(*View)) View { change(&v); return v }
	placed, missing := func(v *View) { v.Short, v.Done = 0, true }, func(v *View) { v.Short = 0 }
	keep := Decision{Action: Keep}
	again := func(after time.Duration) Decision { return Decision{Action: Keep, Again: noon.Add(after)} }
	attempt := func(n int) Decision { return Decision{Action: Make, Attempt: n} }
	for name, c := range map[string]struct {
		view  View
		after time.Duration
		want  Decision
	}{
		"room enough":                         {View{}, 0, keep},
		"no room":                             {View{Short: 4}, 0, attempt(1)},
		"placed":                              {View{Done: true}, 0, keep},
		"over, with pods that wait":           {View{Done: true, Short: 1}, 0, keep},
		"made":                                {short(Made, 1), time.Hour, keep},
		"accepted":                            {short(Accepted, 1), time.Hour, keep},
		"the autoscaler tries again":          {short(Retried, 1), time.Hour, keep},
		"nodes come":                          {short(Provisioned, 1), time.Hour, keep},
		"nodes are there, pods take them":     {with(short(Provisioned, 1), missing), 0, keep},
		"placed with a request":               {with(short(Provisioned, 1), placed), 0, Decision{Action: Remove}},
		"over before any node":                {with(short(Made, 1), placed), 0, Decision{Action: Remove}},
		"a pod is missing":                    {with(short(Made, 1), missing), 0, keep},
		"a pod is missing, and it has failed": {with(short(Failed, 1), missing), time.Hour, keep},
		"fewer pods wait":                     {with(short(Made, 3), func(v *View) { v.Short = 1 }), 0, attempt(1)},
		"failed":                              {short(Failed, 1), 0, again(time.Minute)},
		"failed a minute ago":                 {short(Failed, 1), time.Minute, attempt(2)},
		"expired":                             {short(Expired, 2), time.Minute, again(2 * time.Minute)},
		"revoked":                             {short(Revoked, 3), time.Minute, again(4 * time.Minute)},
		"failed often":                        {short(Failed, 99), time.Minute, again(30 * time.Minute)},
		"failed often, half an hour ago":      {short(Failed, 99), 30 * time.Minute, attempt(100)},
	} {
		c.view.Class = "c"
		if got := Decide(c.view, noon.Add(c.after)); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	other := short(Made, 1)
	other.Class = "another"
	if got := Decide(other, noon); got.Action != Make {
		t.Errorf("of another class: %+v", got)
	}
}

func TestText(t *testing.T) {
	for want, c := range map[string]struct {
		request Request
		again   time.Time
	}{
		" was made":                    {Request{Attempt: 1, Phase: Made}, time.Time{}},
		" is retried: NotFound: later": {Request{Attempt: 1, Phase: Retried, Why: "NotFound: later"}, time.Time{}},
		", attempt 3, failed: Expired: x; the next one is created at 12:00:00 UTC": {Request{Attempt: 3, Phase: Failed, Why: "Expired: x"}, noon},
	} {
		c.request.Name, c.request.Class, c.request.Pods = "holdfast-llama", "c", 4
		want = "ProvisioningRequest holdfast-llama (c) for 4 pods" + want
		if got := Text(c.request, Decision{Again: c.again}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
