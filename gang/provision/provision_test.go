package provision

import (
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func TestDecide(t *testing.T) {
	request := func(p Phase, pods, attempt int) *Request {
		return &Request{Name: "r", Class: "c", Pods: pods, Attempt: attempt, Phase: p, Since: noon}
	}
	for name, c := range map[string]struct {
		view  View
		after time.Duration
		want  Decision
	}{
		"room enough":                            {View{}, 0, Decision{Action: Keep}},
		"no room":                                {View{Short: 4}, 0, Decision{Action: Make, Attempt: 1}},
		"placed":                                 {View{Done: true}, 0, Decision{Action: Keep}},
		"placed, a pod has no word of it":        {View{Done: true, Short: 1}, 0, Decision{Action: Keep}},
		"made":                                   {View{Short: 4, Request: request(Made, 4, 1)}, time.Hour, Decision{Action: Keep}},
		"accepted":                               {View{Short: 4, Request: request(Accepted, 4, 1)}, time.Hour, Decision{Action: Keep}},
		"the autoscaler tries again":             {View{Short: 4, Request: request(Retried, 4, 1)}, time.Hour, Decision{Action: Keep}},
		"nodes come":                             {View{Short: 4, Request: request(Provisioned, 4, 1)}, time.Hour, Decision{Action: Keep}},
		"nodes are there, pods take them":        {View{Request: request(Provisioned, 4, 1)}, 0, Decision{Action: Keep}},
		"placed with a request":                  {View{Done: true, Request: request(Provisioned, 4, 1)}, 0, Decision{Action: Remove}},
		"over before any node":                   {View{Done: true, Request: request(Made, 4, 1)}, 0, Decision{Action: Remove}},
		"a pod is missing":                       {View{Request: request(Made, 4, 1)}, 0, Decision{Action: Keep}},
		"a pod is missing, and it has failed":    {View{Request: request(Failed, 4, 1)}, time.Hour, Decision{Action: Keep}},
		"fewer pods wait":                        {View{Short: 1, Request: request(Made, 4, 3)}, 0, Decision{Action: Make, Attempt: 1}},
		"failed":                                 {View{Short: 4, Request: request(Failed, 4, 1)}, 0, Decision{Action: Keep, Again: noon.Add(time.Minute)}},
		"failed a minute ago":                    {View{Short: 4, Request: request(Failed, 4, 1)}, time.Minute, Decision{Action: Make, Attempt: 2}},
		"expired":                                {View{Short: 4, Request: request(Expired, 4, 2)}, time.Minute, Decision{Action: Keep, Again: noon.Add(2 * time.Minute)}},
		"revoked":                                {View{Short: 4, Request: request(Revoked, 4, 3)}, time.Minute, Decision{Action: Keep, Again: noon.Add(4 * time.Minute)}},
		"failed often":                           {View{Short: 4, Request: request(Failed, 4, 99)}, time.Minute, Decision{Action: Keep, Again: noon.Add(30 * time.Minute)}},
		"failed often, and half an hour is over": {View{Short: 4, Request: request(Failed, 4, 99)}, 30 * time.Minute, Decision{Action: Make, Attempt: 100}},
	} {
		c.view.Class = "c"
		if got := Decide(c.view, noon.Add(c.after)); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	other := View{Class: "another", Short: 4, Request: request(Made, 4, 1)}
	if got := Decide(other, noon); got.Action != Make {
		t.Errorf("of another class: %+v", got)
	}
}

func TestText(t *testing.T) {
	r := Request{Name: "holdfast-llama", Class: "c", Pods: 4, Attempt: 1, Phase: Made}
	for want, c := range map[string]struct {
		change func(*Request)
		again  time.Time
	}{
		"ProvisioningRequest holdfast-llama (c) for 4 pods was made":                                                             {func(*Request) {}, time.Time{}},
		"ProvisioningRequest holdfast-llama (c) for 4 pods is tried again: CapacityIsNotFound: later":                            {func(r *Request) { r.Phase, r.Why = Retried, "CapacityIsNotFound: later" }, time.Time{}},
		"ProvisioningRequest holdfast-llama (c) for 4 pods, attempt 3, failed: Expired: x; the next one is made at 12:00:00 UTC": {func(r *Request) { r.Phase, r.Why, r.Attempt = Failed, "Expired: x", 3 }, noon},
	} {
		is := r
		c.change(&is)
		if got := Text(is, Decision{Again: c.again}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
