package scheduling

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

const (
	// high is a PriorityClass above the default.
	high = "high"
	// plainLabel marks nodes without kwok: for these the test does what a kubelet would do.
	plainLabel = "example.com/plain"
	// squad is the size of gangs on plain nodes.
	squad = 4
)

func onPlain(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{plainLabel: "true"} }

func urgently(p *corev1.Pod) {
	onPlain(p)
	p.Spec.PriorityClassName = high
}

// slowly makes a pod end long after its deletion, unless the test ends the pod.
func slowly(p *corev1.Pod) {
	onPlain(p)
	p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](3600)
}

// plain creates plain nodes, which exist until the end of the part. Their names are not reused, because an excluded node stays excluded.
func (s *stage) plain(n int) {
	s.t.Helper()
	s.plains++
	room := corev1.ResourceList{
		gpu:                   resource.MustParse("8"),
		corev1.ResourceCPU:    resource.MustParse("64"),
		corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	for i := range n {
		name := fmt.Sprintf("plain-%d-%d", s.plains, i)
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{plainLabel: "true", corev1.LabelHostname: name}},
			Status: corev1.NodeStatus{Allocatable: room, Capacity: room,
				Conditions: []corev1.NodeCondition{
					{
						Type:               corev1.NodeReady,
						Status:             corev1.ConditionTrue,
						Reason:             "Plain",
						LastHeartbeatTime:  metav1.Now(),
						LastTransitionTime: metav1.Now(),
					},
				}},
		}
		if _, err := s.client.CoreV1().Nodes().Create(s.ctx, node, metav1.CreateOptions{}); err != nil {
			s.t.Fatal(err)
		}
	}
	stop := s.keep(n)
	s.t.Cleanup(func() {
		s.clear()
		stop()
		if err := s.client.CoreV1().Nodes().DeleteCollection(
			s.ctx,
			metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: plainLabel + "=true"},
		); err != nil {
			s.t.Error(err)
		}
		token := s.token(v1alpha1.PreviewServiceAccount, v1alpha1.PreviewAudience)
		s.until("the scheduler to know that they are gone", func() bool {
			var fabric v1alpha1.FabricResponse
			code, text := s.acting().fabric(s.t, token)
			return code == http.StatusOK && json.Unmarshal(text, &fabric) == nil && fabric.Nodes == nodes
		})
	})
}

// keep renews the leases of the newest plain nodes until it is stopped, so that the node controller treats the nodes as alive.
func (s *stage) keep(n int) (stop func()) {
	s.t.Helper()
	const duration = 40
	ctx, cancel := context.WithCancel(s.ctx)
	api, prefix := s.client.CoordinationV1().Leases(corev1.NamespaceNodeLease), fmt.Sprintf("plain-%d-", s.plains)
	renew := func() {
		for i := range n {
			name, now := fmt.Sprint(prefix, i), metav1.NowMicro()
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: ptr.To[int32](duration), RenewTime: &now}}
			text, err := json.Marshal(map[string]any{"spec": lease.Spec})
			if err == nil { // an update would need a resource version
				_, err = api.Patch(ctx, name, types.MergePatchType, text, metav1.PatchOptions{})
			}
			if apierrors.IsNotFound(err) {
				_, err = api.Create(ctx, lease, metav1.CreateOptions{})
			}
			if err != nil && ctx.Err() == nil {
				s.root.Logf("keeping node %s: %v", name, err)
			}
		}
	}
	renew()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(duration / 4 * time.Second); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				renew()
			}
		}
	}()
	return func() { cancel(); <-done }
}

// running does what kubelets do with admitted pods.
func (s *stage) running(names ...string) {
	s.t.Helper()
	s.until("the gang to be placed", s.bound(names...))
	at := metav1.Now()
	for _, name := range names {
		s.report(
			name,
			corev1.PodStatus{
				Phase:      corev1.PodRunning,
				StartTime:  &at,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at}},
			},
		)
	}
}

// report writes a pod's status as a kubelet would.
func (s *stage) report(name string, status corev1.PodStatus) {
	s.t.Helper()
	patch, err := json.Marshal(map[string]any{"status": status})
	if err == nil {
		_, err = s.client.CoreV1().Pods("default").Patch(s.ctx, name, "application/strategic-merge-patch+json", patch, metav1.PatchOptions{}, "status")
	}
	if err != nil && !apierrors.IsNotFound(err) { // the pod may already be deleted
		s.t.Fatal(err)
	}
}

// previewer returns a function that queries the acting scheduler for where a gang of some size would be placed.
func (s *stage) previewer(change func(*corev1.Pod)) func(size int) v1alpha1.PlacementStatus {
	token := s.token(v1alpha1.PreviewServiceAccount, v1alpha1.PreviewAudience)
	return func(size int) v1alpha1.PlacementStatus {
		var pods []corev1.Pod
		for slot := range size {
			p := member("both", slot, size, fmt.Sprintf("both-%d", slot))
			change(p)
			pods = append(pods, *p)
		}
		code, text := s.acting().ask(s.t, token, pods...)
		var got v1alpha1.PreviewResponse
		if err := json.Unmarshal(text, &got); code != http.StatusOK || err != nil {
			s.t.Fatalf("code %d: %s", code, text)
		}
		return got.Placement
	}
}

// rejected: a kubelet rejects every pod. Its node gets two pods of a gang, not all of them.
func rejected(s *stage) {
	s.plain(2)
	preview := s.previewer(onPlain)
	var first string
	for round := range 2 {
		s.until("both nodes to be free", func() bool { return preview(2).Placed })
		names := s.ranked(fmt.Sprintf("no%d", round), 1, onPlain)
		s.until("the pod to be placed", s.bound(names...))
		at := s.pods()[names[0]].Spec.NodeName
		if round > 0 && at != first {
			s.t.Fatalf("one rejection moved the pod from %s to %s", first, at)
		}
		first = at
		s.report(names[0], corev1.PodStatus{Phase: corev1.PodFailed, Reason: "UnexpectedAdmissionError", Message: "Allocate failed, which is unexpected"})
	}
	s.until("the node to be set aside, and named", func() bool { return strings.Contains(preview(2).Message, "1 unhealthy (RejectsPods): "+first) })
	third := s.ranked("yes", 1, onPlain)
	s.until("the pod to be placed", s.bound(third...))
	if at := s.pods()[third[0]].Spec.NodeName; at == first {
		s.t.Errorf("the third pod went to %s as well", at)
	}
}

// notReady: no member of a gang is placed on a node whose kubelet reports that it is not ready, although the pods tolerate all taints.
func notReady(s *stage) {
	s.plain(2)
	ready := func(node string, is corev1.ConditionStatus) {
		s.t.Helper()
		at := metav1.Now()
		patch, err := json.Marshal(map[string]any{"status": corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: is, Reason: "Plain", Message: "the test says so", LastHeartbeatTime: at, LastTransitionTime: at}}}})
		if err == nil {
			_, err = s.client.CoreV1().Nodes().Patch(s.ctx, node, "application/strategic-merge-patch+json", patch, metav1.PatchOptions{}, "status")
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	bad := fmt.Sprintf("plain-%d-0", s.plains)
	ready(bad, corev1.ConditionFalse)
	named, preview := "1 unhealthy (NotReady): "+bad, s.previewer(onPlain)
	s.until("the scheduler to know it", func() bool { return strings.Contains(preview(2).Message, named) }) // pods arrive by another watch
	both := s.ranked("both", 2, onPlain)
	s.until("the gang to be refused, and the node named", s.saying(both[0], named))
	if s.onNodes("both") > 0 {
		s.t.Error("a part of the gang was placed")
	}
	ready(bad, corev1.ConditionTrue)
	s.until("the gang to be placed, when the node is ready", s.bound(both...))
}

// overstayed: a gang used reserved room because it declared to end in time, and exceeds that time by more than a minute. It is preempted as
// a whole once that admits the gang for which the room was reserved, although both have the same priority. A gang with time left stays.
func overstayed(s *stage) {
	s.plain(squad + 1)
	says := func(runTime string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			onPlain(p)
			p.Annotations[v1alpha1.AnnotationRunTime] = runTime
			p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](3600)
		}
	}
	began := func(ago time.Duration, names ...string) {
		s.running(names...)
		at := metav1.NewTime(time.Now().Add(-ago))
		for _, name := range names {
			s.report(name, corev1.PodStatus{StartTime: &at})
		}
	}
	busy := s.ranked("busy", 2, says("2h"))
	began(0, busy...)
	big := s.ranked("big", squad, onPlain)
	s.until("room to be reserved", s.saying(big[0], "is reserved for it, expected to be free at"))
	late, early := s.ranked("late", 2, says("30m")), s.ranked("early", 1, says("40m"))
	s.until("those that declare to end in time to be placed", s.bound(append(late, early...)...))
	began(0, early...)
	began(2*time.Hour, late...)
	evictions := s.evictions()
	// The room is still needed, but the preemption of the late gang would not help: two more nodes are missing.
	s.until("room to be looked for again", s.searchedAgain())
	if n := s.evictions() - evictions; n > 0 {
		s.t.Errorf("%d evictions for nothing", n)
	}
	s.end(busy...)
	s.until("the late ones to be evicted", func() bool { return len(s.leaving()) == len(late) })
	s.until("it to be said", s.saying(big[0], "preempting gang default/late (beyond its declared run time) (2 pods)"))
	s.t.Log(s.said(big[0]))
	s.end(late...)
	s.until("the gang to be placed", s.bound(big...))
	if s.onNodes("early") != 1 || s.pods()[early[0]].DeletionTimestamp != nil {
		s.t.Error("one that had time left was evicted")
	}
	if n := s.evictions() - evictions; n != len(late) {
		s.t.Errorf("%d evictions of a gang of %d", n, len(late))
	}
}

// madeRoom: a gang of higher priority preempts one whole gang, and not the gang under a disruption budget. What becomes free is held for
// it, pod by pod, until all of it is placed.
func madeRoom(s *stage) {
	s.priorities()
	s.plain(2 * squad)
	kept := s.ranked("kept", squad, onPlain)
	s.running(kept...)
	slow := s.ranked("slow", squad, slowly)
	s.running(slow...)
	s.budget("kept", squad)
	before, evictions := s.pods(), s.evictions()
	urgent := s.ranked("urgent", squad, urgently)
	s.until("the other gang to be evicted", func() bool { return len(s.leaving()) == squad })
	s.until("it to be said", s.saying(urgent[0], "is nominated for it until"))
	s.t.Log(s.said(urgent[0]))
	if !strings.Contains(s.said(urgent[0]), "preempting gang default/slow (4 pods)") {
		s.t.Error("the evicted gang is not named")
	}
	for _, name := range slow {
		if !slices.ContainsFunc(s.pods()[name].Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.DisruptionTarget && c.Reason == "EvictionByEvictionAPI"
		}) {
			s.t.Errorf("%s was not evicted: %v", name, s.pods()[name].Status.Conditions)
		}
	}
	s.end(slow[0])
	// Half of the room is free, and a gang and a single pod need it.
	thief := s.ranked("thief", 1, onPlain)
	s.until("the thief to be refused", s.saying(thief[0], "1 pod wanted, 0 fit"))
	s.create(alone("lone", onPlain))
	s.until("the refused pod's message to name the gang", s.saying("lone", "room on the node is held for gang default/urgent"))
	s.end(slow[1:]...)
	s.until("the gang to be placed", s.bound(urgent...))
	after := s.pods()
	for _, name := range kept {
		if after[name] == nil || after[name].UID != before[name].UID {
			s.t.Errorf("%s is gone", name)
		}
	}
	for _, name := range []string{thief[0], "lone"} {
		if after[name].Spec.NodeName != "" {
			s.t.Errorf("%s took freed room", name)
		}
	}
	if n := s.evictions() - evictions; n != squad {
		s.t.Errorf("%d evictions of a gang of %d", n, squad)
	}
	s.end(urgent...)
	s.until("the others to be let in", s.bound(thief[0], "lone"))
}

// alone returns a pod of no gang.
func alone(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := member("", 0, 1, name)
	p.Labels, p.Annotations = nil, nil
	change(p)
	return p
}

// storedLeaves: of two suitable gangs the one is preempted that has just stored a step, although it has run for longer, because it loses
// less work. This must be the first part with an eviction: the scheduler reads stored steps for such a decision, and reads them again after
// ten seconds at the earliest.
func storedLeaves(s *stage) {
	s.priorities()
	s.plain(2 * squad)
	for name, since := range map[string]time.Duration{"stored": 3 * time.Hour, "unstored": time.Hour} {
		names := s.ranked(name, squad, slowly)
		s.running(names...)
		at := metav1.NewTime(time.Now().Add(-since))
		for _, n := range names {
			s.report(n, corev1.PodStatus{StartTime: &at})
		}
	}
	s.apply(
		"{apiVersion: holdfast.dev/v1alpha1, kind: Gang, metadata: {name: stored, namespace: default}, spec: {members: 4, jobRef: {apiVersion: batch/v1, kind: Job, name: stored, uid: none}}}",
	)
	status, err := json.Marshal(
		map[string]any{
			"status": map[string]any{"run": v1alpha1.RunStatus{State: v1alpha1.RunRunning, Durable: &v1alpha1.StoredStep{At: metav1.NowMicro()}}},
		},
	)
	if err != nil {
		s.t.Fatal(err)
	}
	if out, err := s.cluster.Kubectl(s.ctx, "patch", "gangs.holdfast.dev", "stored", "-n", "default", "--subresource=status", "--type=merge", "-p", string(status)); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	urgent := s.ranked("urgent", squad, urgently)
	s.until("a gang to be evicted", func() bool { return len(s.leaving()) == squad })
	for _, name := range s.leaving() {
		if !strings.HasPrefix(name, "stored") {
			s.t.Errorf("%s leaves", name)
		}
	}
	s.end(s.leaving()...)
	s.until("the other to be placed", s.bound(urgent...))
	if n := s.onNodes("unstored"); n != squad {
		s.t.Errorf("%d of the other gang have nodes", n)
	}
	if out, err := s.cluster.Kubectl(s.ctx, "delete", "gangs.holdfast.dev", "stored", "-n", "default"); err != nil {
		s.t.Errorf("%v: %s", err, out)
	}
}

// madeRoomForOne: a single pod preempts a gang of lower priority as a whole, not only the member whose node it needs.
func madeRoomForOne(s *stage) {
	s.priorities()
	s.plain(squad)
	slow := s.ranked("slow", squad, slowly)
	s.running(slow...)
	s.create(alone("lone", urgently))
	s.until("the whole gang to be evicted", func() bool { return len(s.leaving()) == squad })
	s.until("a node to be nominated", func() bool { return s.pods()["lone"].Status.NominatedNodeName != "" })
	at := s.pods()["lone"].Status.NominatedNodeName
	s.end(slow...)
	s.until("the pod to be placed", s.bound("lone"))
	if got := s.pods()["lone"].Spec.NodeName; got != at {
		s.t.Errorf("the pod is on %s, %s was nominated", got, at)
	}
}

// killedInTheBatch kills the scheduler when half of a gang has been evicted and a budget forbids the other evictions. If room is still
// needed the next replica evicts the rest. If room has become free by then, no other gang is preempted.
func killedInTheBatch(s *stage) {
	s.priorities()
	s.plain(2 * squad)
	for _, c := range []struct {
		name    string
		another bool // another gang ends while no replica leads
		leave   int
	}{{"Finished", false, squad}, {"TakenBack", true, squad / 2}} {
		other := s.ranked("other", squad, onPlain)
		s.running(other...)
		s.budget("other", squad)
		slow := s.ranked("slow", squad, slowly)
		s.running(slow...)
		allow := s.forbid(slow[squad/2:])
		evictions, leader := s.evictions(), s.acting()
		urgent := s.ranked("urgent", squad, urgently)
		s.until("half of the gang to be evicted", func() bool { return len(s.leaving()) == squad/2 })
		leader.kill()
		if c.another {
			s.end(other...)
			s.until("the gang to be placed", s.bound(urgent...))
			allow()
		} else {
			allow()
			thief := s.ranked("thief", 1, onPlain)
			s.until("the rest to be evicted", func() bool { return len(s.leaving()) == squad })
			s.until("the thief to be refused", s.saying(thief[0], "1 pod wanted, 0 fit"))
			s.end(slow...)
			s.until("the gang to be placed", s.bound(urgent...))
			if s.onNodes("thief") > 0 || s.onNodes("other") < squad {
				s.t.Error("others have the room, or left for it")
			}
		}
		s.leader, s.follower = s.follower, s.start()
		// The replica has handled a gang that was created now. It evicts no other gang.
		last := s.ranked("last", 2*squad, onPlain)
		s.until("a gang to be refused", s.saying(last[0], "8 pods wanted, 0 fit"))
		if n := s.evictions() - evictions; n != c.leave {
			s.t.Errorf("%s: %d evictions, %d are needed", c.name, n, c.leave)
		}
		s.unbudget("other")
		s.clear()
	}
}

// leaving lists the evicted pods.
func (s *stage) leaving() []string {
	s.t.Helper()
	var names []string
	for name, p := range s.pods() {
		if p.DeletionTimestamp != nil {
			names = append(names, name)
		}
	}
	return names
}

// forbid makes the API server refuse to evict some pods, until the returned function is called.
func (s *stage) forbid(names []string) (allow func()) {
	s.t.Helper()
	const policy = "no-eviction"
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = strconv.Quote(n)
	}
	rules := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: policy},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: ptr.To(admissionv1.Fail),
			MatchConstraints: &admissionv1.MatchResources{
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
				}}},
			},
			Validations: []admissionv1.Validation{{Expression: "!(request.name in [" + strings.Join(quoted, ", ") + "])", Message: "not now"}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: policy},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName:        policy,
			ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		}}
	api := s.client.AdmissionregistrationV1()
	if _, err := api.ValidatingAdmissionPolicies().Create(s.ctx, rules, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	if _, err := api.ValidatingAdmissionPolicyBindings().Create(s.ctx, binding, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	refused := func() bool {
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: names[0]}}
		err := s.client.CoreV1().
			RESTClient().
			Post().
			Namespace("default").
			Resource("pods").
			Name(names[0]).
			SubResource("eviction").
			Param("dryRun", metav1.DryRunAll).
			Body(eviction).
			Do(s.ctx).
			Error()
		return err != nil && strings.Contains(err.Error(), "not now")
	}
	s.until("evictions to be refused", refused)
	return func() {
		s.t.Helper()
		if err := api.ValidatingAdmissionPolicyBindings().Delete(s.ctx, policy, metav1.DeleteOptions{}); err != nil {
			s.t.Fatal(err)
		}
		if err := api.ValidatingAdmissionPolicies().Delete(s.ctx, policy, metav1.DeleteOptions{}); err != nil {
			s.t.Fatal(err)
		}
		s.until("evictions to be allowed", func() bool { return !refused() })
	}
}

// evictions counts the evictions that the API server carried out.
func (s *stage) evictions() int {
	s.t.Helper()
	return s.metric(s.client.Discovery().RESTClient(), "apiserver_request_total{", `subresource="eviction"`, `code="201"`, `dry_run=""`)
}

// searchedAgain returns a function that is true once the leading replica has searched for room three more times. At least one of these
// searches saw the present state.
func (s *stage) searchedAgain() func() bool {
	s.t.Helper()
	config, err := s.cluster.Config()
	if err != nil {
		s.t.Fatal(err)
	}
	config.Host, config.Insecure, config.CAData, config.CAFile = fmt.Sprintf("https://127.0.0.1:%d", s.acting().port), true, nil, ""
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		s.t.Fatal(err)
	}
	searches := func() int {
		return s.metric(client.Discovery().RESTClient(), "holdfast_gang_preemption_search_seconds_count")
	}
	before := searches()
	return func() bool { return searches() >= before+3 }
}

// metric adds up the metrics whose line begins with a text and contains all the others.
func (s *stage) metric(of rest.Interface, begins string, has ...string) int {
	s.t.Helper()
	text, err := of.Get().AbsPath("/metrics").DoRaw(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	sum := 0.
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, begins) && !slices.ContainsFunc(has, func(h string) bool { return !strings.Contains(line, h) }) {
			n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
			if err != nil {
				s.t.Fatal(err)
			}
			sum += n
		}
	}
	return int(sum)
}

func (s *stage) priorities() {
	s.t.Helper()
	_, err := s.client.SchedulingV1().
		PriorityClasses().
		Create(s.ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: high}, Value: 1000}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		s.t.Fatal(err)
	}
	p := member("priorities", 0, 1, "priorities")
	p.Spec.PriorityClassName = high
	s.until("the API server to know the class where it admits pods", func() bool { // from a cache
		_, err := s.client.CoreV1().Pods("default").Create(s.ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil
	})
}

// budget forbids the eviction of a gang's pods, at most until the end of this part.
func (s *stage) budget(gang string, size int) {
	s.t.Helper()
	all := intstr.FromInt(size)
	pdb := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: gang},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &all,
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelGang: gang}},
		}}
	if _, err := s.client.PolicyV1().PodDisruptionBudgets("default").Create(s.ctx, pdb, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.unbudget(gang) })
}

func (s *stage) unbudget(gang string) {
	if err := s.client.PolicyV1().PodDisruptionBudgets("default").Delete(s.ctx, gang, metav1.DeleteOptions{}); err != nil &&
		!apierrors.IsNotFound(err) {
		s.t.Error(err)
	}
}
