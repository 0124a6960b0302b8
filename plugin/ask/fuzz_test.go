package ask

import (
	"reflect"
	"strings"
	"testing"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// FuzzQuestion: a body that is accepted has pods that can be placed, not more than are allowed. Any other body is refused with a reason.
func FuzzQuestion(f *testing.F) {
	for _, body := range []string{"", "{}", "null", onePod, `{"pods":[]}`, `{"pods":[{}]}`, `{"pods":[null]}`, `{"pods":{}}`, onePod + "x",
		`{"pods":[{"metadata":{"name":"p","labels":{"a":"b"}},"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"1e9","nvidia.com/gpu":"8"}}}],"nodeName":"n"}}]}`,
		`{"pods":[{"spec":{"containers":[{"resources":{"requests":{"cpu":"1Ei1"}}}]}}]}`, `{"pods":[` + strings.Repeat("{},", 20) + `{}]}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		pods, err := question(body)
		if again, same := question(body); !reflect.DeepEqual(pods, again) || (err == nil) != (same == nil) {
			t.Fatal("read twice, read differently")
		}
		if err != nil {
			if len(pods) > 0 || err.Error() == "" || len(err.Error()) > 4096 {
				t.Fatalf("%d pods beside a reason of %d bytes", len(pods), len(err.Error()))
			}
			return
		}
		if len(pods) == 0 || len(pods) > v1alpha1.MaxPreviewPods {
			t.Fatalf("%d pods are asked about", len(pods))
		}
		for i, pod := range pods {
			if pod == nil || len(pod.Spec.Containers) == 0 {
				t.Fatalf("pod %d has no container", i)
			}
		}
	})
}
