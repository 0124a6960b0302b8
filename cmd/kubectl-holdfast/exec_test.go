package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/internal/membership"
)

// pod returns a pod of a job with a storage claim.
func pod(name string, job types.UID) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, Labels: map[string]string{v1alpha1.LabelGang: "train"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "train", UID: job, Controller: ptr.To(true)}}}}
	p.Spec.Containers = []corev1.Container{{Name: "sidecar"}, {Name: "train", Command: []string{"/run/holdfast/bin/holdfast-agent", "init"}, Env: []corev1.EnvVar{
		{Name: "HOLDFAST_STORAGE", Value: "/run/holdfast/storage"}, {Name: membership.JobVariable, Value: string(job)}}}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "train", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	return p
}

func TestPodToAsk(t *testing.T) {
	s, err := scheme()
	if err != nil {
		t.Fatal(err)
	}
	ended, going, bare := pod("train-0", "u-1"), pod("train-1", "u-1"), pod("train-2", "u-1")
	ended.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	going.DeletionTimestamp, going.Finalizers = &metav1.Time{Time: time.Now()}, []string{"a/b"}
	bare.Spec.Containers[1].Env = bare.Spec.Containers[1].Env[1:]
	others := []client.Object{ended, going, bare, pod("train-3", "u-0")}
	g := gangOf("train", "u-1")
	g.Spec.Storage = &v1alpha1.GangStorage{Claim: "steps"}
	api := fake.NewClientBuilder().WithScheme(s).WithObjects(append(slices.Clone(others), pod("train-5", "u-1"), pod("train-4", "u-1"))...).Build()
	p, c, err := podToAsk(t.Context(), api, g)
	if err != nil || p.Name != "train-4" || c.Name != "train" {
		t.Errorf("%v, %v, %v", p, c, err)
	}
	if _, _, err := podToAsk(t.Context(), fake.NewClientBuilder().WithScheme(s).WithObjects(others...).Build(), g); err == nil ||
		!strings.Contains(err.Error(), "mount claim steps") ||
		!strings.Contains(err.Error(), "--dir") {
		t.Errorf("where no pod runs: %v", err)
	}
	g.Spec.Storage = nil
	if _, _, err := podToAsk(t.Context(), api, g); err == nil || !strings.Contains(err.Error(), v1alpha1.AnnotationStorageClaim) {
		t.Errorf("without storage: %v", err)
	}
}

// kubelet runs a command as a kubelet does. The function agent writes the output and returns the exit code.
func kubelet(t *testing.T, agent func(command []string, in io.Reader, out, said io.Writer) int) *rest.Config {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/team-a/pods/train-0/exec" || r.URL.Query().Get("container") != "train" {
			t.Errorf("asked %s", r.URL)
		}
		conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{"v5.channel.k8s.io": {Binary: true,
			Channels: []wsstream.ChannelType{wsstream.ReadChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel}}})
		_, streams, err := conn.Open(w, r)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		status := metav1.Status{Status: metav1.StatusSuccess}
		if code := agent(r.URL.Query()["command"], streams[0], streams[1], streams[2]); code != 0 {
			status = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Details: &metav1.StatusDetails{
				Causes: []metav1.StatusCause{{Type: "ExitCode", Message: string(rune('0' + code))}}}}
		}
		_ = json.NewEncoder(streams[3]).Encode(status)
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}
}

func TestAskAgent(t *testing.T) {
	p := pod("train-0", "u-1")
	open := make(chan error, 1)
	got, err := askAgent(t.Context(), kubelet(t, func(command []string, in io.Reader, out, _ io.Writer) int {
		if want := []string{"/run/holdfast/bin/holdfast-agent", "ckpt", "verify"}; !slices.Equal(command, want) {
			t.Errorf("the command is %q", command)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := in.Read(make([]byte, 1))
			ended <- err
		}()
		_, _ = io.WriteString(out, `{"version":`)
		_, _ = io.WriteString(out, "1}")
		select {
		case err := <-ended:
			open <- err
		default:
			open <- nil
		}
		return 0
	}), p, &p.Spec.Containers[1], []string{"ckpt", "verify"})
	if err != nil || string(got) != `{"version":1}` {
		t.Errorf("%q, %v", got, err)
	}
	if err := <-open; err != nil {
		t.Errorf("the input ended while the answer was waited for: %v", err)
	}
}

// TestAgentsThatDoNotAnswer: every failure has its remedy.
func TestAgentsThatDoNotAnswer(t *testing.T) {
	p := pod("train-0", "u-1")
	for want, agent := range map[string]func(command []string, in io.Reader, out, said io.Writer) int{
		"has a version without this query": func(_ []string, _ io.Reader, _, said io.Writer) int {
			_, _ = io.WriteString(said, "usage:\n  holdfast-agent install DIR\n")
			return 2
		},
		"looking into /run/holdfast/storage: stale": func(_ []string, _ io.Reader, _, said io.Writer) int {
			_, _ = io.WriteString(said, "holdfast: looking into /run/holdfast/storage: stale\n")
			return 1
		},
		"answered more than": func(_ []string, _ io.Reader, out, _ io.Writer) int {
			chunk := make([]byte, 1<<20)
			for range 20 {
				if _, err := out.Write(chunk); err != nil {
					break
				}
			}
			return 0
		},
		"use --dir": func(_ []string, _ io.Reader, _, _ io.Writer) int { return 1 },
	} {
		if _, err := askAgent(t.Context(), kubelet(t, agent), p, &p.Spec.Containers[1], nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	forbidden := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).
			Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
				Status:   metav1.StatusFailure,
				Code:     403,
				Reason:   metav1.StatusReasonForbidden,
				Message:  `pods "train-0" is forbidden: User "alice" cannot get resource "pods/exec" in API group "" in the namespace "team-a"`,
			})
	}))
	defer forbidden.Close()
	if _, err := askAgent(t.Context(), &rest.Config{Host: forbidden.URL}, p, &p.Spec.Containers[1], nil); err == nil ||
		!strings.Contains(err.Error(), "ClusterRole edit") {
		t.Errorf("without the right: %v", err)
	}
}

// TestTheAgentIsToldThatNobodyWaits: when the caller ends, the input of the command in the agent's pod ends.
func TestTheAgentIsToldThatNobodyWaits(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p, reported := pod("train-0", "u-1"), make(chan error, 1)
	cfg := kubelet(t, func(_ []string, in io.Reader, _, _ io.Writer) int {
		cancel()
		_, err := in.Read(make([]byte, 1))
		reported <- err
		return 1
	})
	if _, err := askAgent(ctx, cfg, p, &p.Spec.Containers[1], []string{"ckpt", "verify"}); !errors.Is(err, context.Canceled) {
		t.Errorf("asked on: %v", err)
	}
	if err := <-reported; err == nil {
		t.Error("the input did not end")
	}
}
