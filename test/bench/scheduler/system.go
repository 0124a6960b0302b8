package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

// The systems that are compared.
const (
	systemRaw          = "raw"
	systemPlain        = "plain"
	systemNative       = "native"
	systemCoscheduling = "coscheduling"
	systemHoldfast     = "holdfast"
	systemPodGroup     = "holdfast-podgroup"
	systemJob          = "holdfast-job"
	systemRawJob       = "raw-job"
)

// qps is the client rate limit of every scheduler.
const qps = 5000

// system is one way to place pods on nodes.
type system struct {
	name, what string
	// scheduler is the scheduler's name in pods; binary, under bin/ of the source tree, runs as argv0.
	scheduler, binary, argv0 string
	// config is the scheduler's configuration, without the client's part.
	config func(source string) (string, error)
	// gates are its feature gates besides the common one; rackGates are those for racks.
	gates, rackGates string
	flags            []string
	// define creates the kinds that the system needs; group creates the object of one gang; join puts a pod into it.
	define func(ctx context.Context, p *plane, source string) error
	group  func(ctx context.Context, p *plane, g group) error
	join   func(p *corev1.Pod, g group)
	// jobs: kube-controller-manager makes the pods of each gang's Job, and Holdfast's webhook admits them.
	jobs bool
}

// gate is in every scheduler's command line, as Holdfast ships it: the feature costs a second write per bound pod.
const gate = "NominatedNodeNameForExpectation=false"

// collections is in the environment of holdfast-scheduler, as it is shipped. The shipped GOMEMLIMIT is left out: memory stays below it.
const collections = "GOGC=300"

var systems = []system{
	{name: systemRaw, what: "binding calls alone, as many at a time as Holdfast makes, after the last pod was created: the limit"},
	{name: systemPlain, what: "kube-scheduler, which knows no gangs", scheduler: corev1.DefaultSchedulerName, binary: "holdfast-dev", argv0: "kube-scheduler", config: plainConfig},
	{name: systemNative, what: "kube-scheduler with its own gangs (GenericWorkload)", scheduler: corev1.DefaultSchedulerName, binary: "holdfast-dev", argv0: "kube-scheduler", config: plainConfig,
		gates: ",GenericWorkload=true", rackGates: ",TopologyAwareWorkloadScheduling=true", group: nativeGroup, join: nativeJoin},
	{name: systemCoscheduling, what: "coscheduling of scheduler-plugins", scheduler: "coscheduling", binary: "bench-coscheduling", argv0: "coscheduling", config: coschedulingConfig,
		define: coschedulingDefine, group: coschedulingGroup, join: coschedulingJoin},
	{name: systemRawJob, what: "the same for the pods of a Job that Holdfast admits", jobs: true, define: holdfastDefine},
	{name: systemHoldfast, what: "holdfast-scheduler with the shipped configuration", scheduler: v1alpha1.SchedulerName, binary: "holdfast-scheduler", argv0: "holdfast-scheduler", config: holdfastConfig,
		flags: noPreviews, define: holdfastDefine, group: holdfastGroup},
	{name: systemPodGroup, what: "the same, for pods of a PodGroup of scheduler-plugins", scheduler: v1alpha1.SchedulerName, binary: "holdfast-scheduler", argv0: "holdfast-scheduler", config: holdfastConfig,
		flags: noPreviews, define: coschedulingDefine, group: coschedulingGroup, join: podGroupJoin},
	{name: systemJob, what: "the same, for a Job: with webhook, agents, controller and Gang", binary: "holdfast-scheduler", argv0: "holdfast-scheduler", config: holdfastConfig,
		flags: noPreviews, jobs: true, define: holdfastDefine},
}

// start starts the system's scheduler, waits until it is ready and returns its port. Raw has none.
func (s system) start(ctx context.Context, p *plane, source string, racks bool) (*process, int, error) {
	if s.binary == "" {
		return nil, 0, nil
	}
	config, err := s.config(source)
	if err != nil {
		return nil, 0, err
	}
	config += fmt.Sprintf("\nclientConnection: {kubeconfig: %s, qps: %d, burst: %d}\nleaderElection: {leaderElect: false}\n", p.kubeconfig, qps, qps)
	file := filepath.Join(p.dir, s.name+".yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, 0, err
	}
	free, err := ports(1)
	if err != nil {
		return nil, 0, err
	}
	child, err := start(p.dir, s.argv0, filepath.Join(source, "bin", s.binary), s.env(), s.args(p, file, free[0], racks)...)
	if err != nil {
		return nil, 0, err
	}
	if err := child.until(ctx, func() error { _, err := get(ctx, free[0], "/readyz"); return err }); err != nil {
		child.stop()
		return nil, 0, err
	}
	return child, free[0], nil
}

// env are the variables of the system's scheduler, as it is shipped.
func (s system) env() []string {
	if s.binary == "holdfast-scheduler" {
		return []string{collections}
	}
	return nil
}

// args are the arguments of the system's scheduler.
func (s system) args(p *plane, config string, port int, racks bool) []string {
	gates := gate + s.gates
	if racks {
		gates += s.rackGates
	}
	return append([]string{"--config=" + config, "--feature-gates=" + gates, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir=" + p.dir,
		"--authentication-kubeconfig=" + p.kubeconfig, "--authorization-kubeconfig=" + p.kubeconfig, "--authentication-skip-lookup",
		"--authorization-always-allow-paths=/readyz,/metrics,/debug/*"}, s.flags...)
}

const configHead = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

func plainConfig(string) (string, error) { return configHead, nil }

func coschedulingConfig(string) (string, error) {
	return configHead + `profiles:
  - schedulerName: coscheduling
    plugins:
      multiPoint: {enabled: [{name: Coscheduling}]}
      queueSort: {enabled: [{name: Coscheduling}], disabled: [{name: "*"}]}
`, nil
}

// own matches the parts of the shipped configuration that the benchmark sets equally for all.
var own = regexp.MustCompile(`(?m)^(clientConnection|leaderElection): \{.*\}$`)

func holdfastConfig(source string) (string, error) {
	text, err := os.ReadFile(filepath.Join(source, "manifests/scheduler/config.yaml"))
	if err != nil {
		return "", err
	}
	if n := len(own.FindAll(text, -1)); n != 2 {
		return "", fmt.Errorf("the shipped configuration has %d of 2 lines for client and leader", n)
	}
	return string(own.ReplaceAll(text, nil)), nil
}

func nativeGroup(ctx context.Context, p *plane, g group) error {
	spec := schedulingv1beta1.PodGroupSpec{
		SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(g.size)}},
	}
	if g.rack {
		spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{
			Topology: []schedulingv1beta1.TopologyConstraint{{Key: labelRack}},
		}
	}
	_, err := p.client.SchedulingV1beta1().
		PodGroups(namespace).
		Create(ctx, &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: g.name}, Spec: spec}, metav1.CreateOptions{})
	return err
}

func nativeJoin(p *corev1.Pod, g group) {
	p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To(g.name)}
}

var (
	gangsResource     = v1alpha1.GroupVersion.WithResource("gangs")
	podGroupsResource = schema.GroupVersionResource{Group: "scheduling.x-k8s.io", Version: "v1alpha1", Resource: "podgroups"}
)

// peers is the module with other projects' schedulers.
const peers = "test/peers"

func coschedulingDefine(ctx context.Context, p *plane, source string) error {
	return p.define(ctx, filepath.Join(source, peers, "podgroups.yaml"), podGroupsResource)
}

func coschedulingGroup(ctx context.Context, p *plane, g group) error {
	u := object(podGroupsResource, "PodGroup", g.name, map[string]any{"minMember": int64(g.size), "scheduleTimeoutSeconds": int64(600)})
	_, err := p.dynamic.Resource(podGroupsResource).Namespace(namespace).Create(ctx, u, metav1.CreateOptions{})
	return err
}

// podGroupJoin makes a pod a member of a PodGroup in place of a Gang: in both it would be refused.
func podGroupJoin(p *corev1.Pod, g group) {
	coschedulingJoin(p, g)
	delete(p.Labels, v1alpha1.LabelGang)
	delete(p.Annotations, v1alpha1.AnnotationGangSize)
	delete(p.Annotations, v1alpha1.AnnotationGangSlot)
}

func coschedulingJoin(p *corev1.Pod, g group) { p.Labels["scheduling.x-k8s.io/pod-group"] = g.name }

// noPreviews keeps the port of previews closed.
var noPreviews = []string{"--preview-bind-address="}

// id is a pod's name without the random end that a Job's pod has.
func (s system) id(pod string) string {
	if !s.jobs {
		return pod
	}
	parts := jobPod.FindStringSubmatch(pod)
	if parts == nil {
		return pod
	}
	slot, err := strconv.Atoi(parts[2])
	if err != nil {
		return pod
	}
	return podName(parts[1], slot)
}

// jobPod matches the name of a Job's pod: the Job's name, the index and a random end.
var jobPod = regexp.MustCompile(`^(.+)-(\d+)-[a-z0-9]+$`)

func holdfastDefine(ctx context.Context, p *plane, source string) error {
	return p.define(ctx, filepath.Join(source, "manifests/crd/holdfast.dev_gangs.yaml"), gangsResource)
}

// holdfastGroup creates the Gang, as Holdfast's controller does for a Job.
func holdfastGroup(ctx context.Context, p *plane, g group) error {
	u := object(gangsResource, "Gang", g.name, map[string]any{"members": int64(g.size),
		"jobRef": map[string]any{"apiVersion": "batch/v1", "kind": "Job", "name": g.name, "uid": strings.Repeat("0", 8)}})
	_, err := p.dynamic.Resource(gangsResource).Namespace(namespace).Create(ctx, u, metav1.CreateOptions{})
	return err
}

func object(gvr schema.GroupVersionResource, kind, name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(gvr.GroupVersion().WithKind(kind))
	u.SetName(name)
	u.SetNamespace(namespace)
	return u
}
