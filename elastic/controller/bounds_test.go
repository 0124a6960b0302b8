//go:build !race

package controller

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/members"
	"holdfast.dev/holdfast/elastic/replacements"
	"holdfast.dev/holdfast/gang/status"
	"holdfast.dev/holdfast/internal/protocol"
	"holdfast.dev/holdfast/internal/settings"
)

// TestTheLargestGangFitsIntoItsObject: the status of the largest gang fits into its object in the worst case. All pods are evicted at once.
// Half of them were given up before because their agents sent no reports. All pods had been replaced again and again. Their names and
// messages are long, and drained pods copied the state of all ranks.
func TestTheLargestGangFitsIntoItsObject(t *testing.T) {
	const most = 3 << 19 // the largest request of etcd: 1.5 MiB
	at := time.Unix(1_700_000_000, 0)
	long := func(what string, i, length int) string {
		return fmt.Sprintf("%s-%s-%d", what, strings.Repeat("x", length-len(what)-6), i)
	}
	name := func(i int) string { return long("pod", i, 63) }
	node := func(i int) string { return long("node", i, 120) }
	termination := func(i int) elastic.Termination {
		return elastic.Termination{
			Slot:     elastic.Slot(i),
			Pod:      fmt.Sprintf("01234567-89ab-cdef-0123-%012d", i),
			Name:     name(i),
			Node:     node(i),
			Cause:    v1alpha1.CauseNodeGone,
			Message:  strings.Repeat("why ", 500),
			At:       at,
			Deadline: at,
			Dead:     true,
		}
	}
	record := elastic.Record{
		Generation: 30,
		Phase:      elastic.Running,
		Progress:   elastic.Progress{Seen: members.Seen{Ranks: 8 * v1alpha1.MaxMembers}},
	}
	for rank := range 8 * v1alpha1.MaxMembers {
		if rank/8%2 == 0 {
			record.Copies = append(record.Copies, elastic.RankCopy{Rank: rank, Mark: protocol.Mark{Step: 123_456, Generation: 29}})
		}
	}
	for i := range int64(v1alpha1.MaxKept + v1alpha1.MaxKeptEvery + v1alpha1.MaxPins) {
		record.Kept = append(record.Kept, elastic.StoredStep{Mark: protocol.Mark{Step: 123_000 - i, Generation: 29}, At: at})
	}
	record.Pinned = record.Kept[:v1alpha1.MaxPins]
	level := elastic.ReplacementsPending{}
	for i := range v1alpha1.MaxMembers {
		level.Pods = append(level.Pods, termination(i))
		if i%2 == 0 {
			silent := termination(i)
			silent.Cause, silent.Message = replacements.AgentUnreachable, "its agent was unreachable for 10m0s while generation 30 was halting"
			record.PendingReplacements = append(record.PendingReplacements, silent)
		}
	}
	for i := range 20 {
		rec := elastic.Recovery{Generation: int64(10 + i), DetectedAt: at}
		for slot := range v1alpha1.MaxMembers {
			d := termination(slot)
			d.Pod, d.Message = fmt.Sprint(i, d.Pod), d.Message[:300]
			rec.Replaced = append(
				rec.Replaced,
				elastic.Replacement{Termination: d, ReleasedAt: at, By: name(slot), NewNode: node(slot), AttachedAt: at},
			)
		}
		record.Recoveries = append(record.Recoveries, rec)
	}
	var run *v1alpha1.RunStatus
	for _, e := range elastic.Step(elastic.New(v1alpha1.MaxMembers, 0, record), level, at) {
		if e, ok := e.(elastic.Persist); ok {
			s := runStatus(e.Record)
			run = &s
		}
	}
	if run == nil || len(run.PendingReplacements) == 0 {
		t.Fatal("nothing is stored")
	}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{UID: "job"}}
	var pods []corev1.Pod
	var nodes []string
	for i := range v1alpha1.MaxMembers {
		run.Progress.Attached = append(run.Progress.Attached, int32(i))
		nodes = append(nodes, node(i))
		pod := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name:        name(i),
				UID:         "u",
				Annotations: map[string]string{v1alpha1.AnnotationGangSlot: fmt.Sprint(i)},
				OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "batch/v1", Kind: "Job", UID: "job", Controller: ptr.To(true)},
				},
			},
			Spec: corev1.PodSpec{NodeName: node(i), Containers: madeFor("job")},
		}
		old := pod.DeepCopy() // may not be evicted
		old.Labels, old.Annotations[v1alpha1.AnnotationEvictionRefused] = map[string]string{v1alpha1.LabelReplaced: "true"}, strings.Repeat("because ", 100)
		pods = append(pods, pod, *old)
	}
	g := &v1alpha1.Gang{Status: v1alpha1.GangStatus{Run: run}}
	known := status.GatherJobGang(g, status.Job{UID: job.UID, Admitted: settings.Job{Members: v1alpha1.MaxMembers}}, pods)
	placed := status.Placed(nodes)
	g.Status.Members, g.Status.Notes, g.Status.Placement = known.Members, known.Notes, &placed
	if len(g.Status.Members) < v1alpha1.MaxMembers/3 || len(g.Status.Notes) == 0 || len(placed.Nodes) == 0 {
		t.Errorf("%d members, %d notes and %d nodes are listed", len(g.Status.Members), len(g.Status.Notes), len(placed.Nodes))
	}
	wire, err := json.Marshal(g)
	if err != nil {
		t.Fatal(err)
	}
	if room := most - len(wire); room < 64<<10 { // for all that is not in the status
		t.Errorf("the Gang has %d bytes, %d are left", len(wire), room)
	}
	for what, part := range map[string]any{
		"pending":    run.PendingReplacements,
		"recoveries": run.Recoveries,
		"copies":     run.Copies,
		"members":    g.Status.Members,
		"notes":      g.Status.Notes,
		"nodes":      placed.Nodes,
	} {
		wire, _ := json.Marshal(part)
		t.Logf("%s: %d bytes", what, len(wire))
	}
	if back := recordOf(run); len(back.Copies) != len(record.Copies) ||
		back.Copies[len(back.Copies)-1] != record.Copies[len(record.Copies)-1] {
		t.Errorf("%d copies are read back, want %d", len(back.Copies), len(record.Copies))
	}
}
