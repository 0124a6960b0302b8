// Package controller carries out the decisions of package elastic at the API server. The controller takes no decisions.
// Each of its actions may be repeated.
//
//   - The controller writes status.run of a Gang, under a field manager of its own.
//   - The controller makes the job of a given-up gang fail, and writes events on the job and on the Gang.
//   - The controller reports to the coordinator which pods must be replaced, because of their node or because they are
//     being deleted, and which jobs are over.
//   - The controller releases pods from their Job when they are replaced or ended by their nodes, and makes sure that these pods are
//     deleted.
package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"holdfast.dev/holdfast/api/v1alpha1"
	"holdfast.dev/holdfast/elastic"
	"holdfast.dev/holdfast/elastic/cause"
	"holdfast.dev/holdfast/elastic/coordinator"
	"holdfast.dev/holdfast/internal/jobs"
	"holdfast.dev/holdfast/internal/pace"
)

// FieldManager owns status.run of every Gang.
const FieldManager = "holdfast-elastic"

// noteLimit is what the API server takes as an event's note, less some room.
const noteLimit = 1000

// ErrSuperseded:  the Gang has a record that this process neither wrote nor read.
var ErrSuperseded = coordinator.ErrSuperseded

// Options of New. All fields but Suspect, Unsuspect, Pass and Metrics must be set.
type Options struct {
	// Client writes, and reads from the manager's cache.
	Client client.Client
	// Live reads from the API server itself.
	Live client.Reader
	// Jobs reads the objects of all kinds of job.
	Jobs *jobs.Reader
	// Recorder writes events; for example mgr.GetEventRecorder("holdfast-elastic").
	Recorder events.EventRecorder
	Log      logr.Logger
	// Suspect excludes the node of a pod that is replaced because its node may be at fault, before the pod is released; nil: no node is
	// excluded. It may be called again for the same pod.
	Suspect func(ctx context.Context, node string, s v1alpha1.NodeSuspicion) error
	// Unsuspect withdraws the gang's word of a cause about a node; nil: nothing is withdrawn.
	Unsuspect func(ctx context.Context, node string, s v1alpha1.NodeSuspicion) error
	// Pass records on a node that it passed a gang's check; nil: nothing is recorded.
	Pass func(ctx context.Context, node string, p v1alpha1.NodePass) error
	// Metrics registers this package's metrics; nil: nowhere.
	Metrics prometheus.Registerer
}

// Controller is the coordinator's store. It also reconciles: it makes the job of a given-up gang fail, reports the pods to be
// replaced to the coordinator, and evicts released pods.
type Controller struct {
	Options
	// Coordinator receives terminations; set by SetupWithManager.
	Coordinator Coordinator
	counts      counts
	writer      *writer
	// recentEvictions are terminating pods, seenPods those that this process took out of their Job, freed the same as they come.
	recentEvictions, seenPods *recentEvictions
	freed                     chan event.GenericEvent
	// noticed brings gangs of which a pod was told to end.
	noticed chan event.GenericEvent
	// pendingPace and placedPace are those of the two reconcilers that list all pods of a gang.
	pendingPace, placedPace pace.Gangs

	mu sync.Mutex
	// notified are gangs of which terminations stand at the coordinator, over those whose Job is over and has pods yet; slotGaps are
	// slots whose pod was taken out. All are guarded by mu, and to lose them costs a call and a figure.
	notified map[coordinator.Key]bool
	over     map[coordinator.Key]bool
	slotGaps map[slotKey]slotGap
	// terminating are pods, by UID, whose agents were told to end, and when that was heard; guarded by mu.
	terminating map[types.UID]time.Time
	// hidden are pods that are hidden from their job's controller, and since when that was seen; guarded by mu.
	hidden map[types.UID]time.Time
	// ended is when pods of a slot were released that their nodes ended, endedSwept when old ones were forgotten; guarded by mu.
	ended      map[slotKey]map[types.UID]time.Time
	endedSwept time.Time
}

var _ coordinator.Store = (*Controller)(nil)

// New returns a Controller. Pass it as coordinator.Options.Store and call SetupWithManager.
func New(o Options) *Controller {
	return &Controller{
		Options:         o,
		counts:          newCounts(),
		writer:          newWriter(),
		recentEvictions: newRecentEvictions(),
		seenPods:        newRecentEvictions(),
		freed:           make(chan event.GenericEvent, recentEvictionsKept),
		noticed:         make(chan event.GenericEvent, recentEvictionsKept),
		terminating:     map[types.UID]time.Time{},
		hidden:          map[types.UID]time.Time{},
		ended:           map[slotKey]map[types.UID]time.Time{},
		notified:        map[coordinator.Key]bool{},
		over:            map[coordinator.Key]bool{},
		slotGaps:        map[slotKey]slotGap{},
	}
}

// Load reads the Gang from the API server, not from the cache: a new leader must not use an older copy.
func (c *Controller) Load(ctx context.Context, key coordinator.Key) (int, elastic.Settings, elastic.Record, error) {
	g, err := c.gang(ctx, c.Live, key)
	if err != nil {
		return 0, elastic.Settings{}, elastic.Record{}, err
	}
	if n := g.Spec.Members; n < 1 || n > v1alpha1.MaxMembers { // a Gang of a definition without the limit
		return 0, elastic.Settings{}, elastic.Record{}, fmt.Errorf("gang %s/%s has %d members: must be 1 to %d", key.Namespace, key.Name, n, v1alpha1.MaxMembers)
	}
	c.writer.loaded(key, g.Status.Run)
	return int(g.Spec.Members), settingsOf(g), recordOf(g.Status.Run), nil
}

// gang reads the Gang of the key's job; a Gang of an older job with the same name is not found.
func (c *Controller) gang(ctx context.Context, from client.Reader, key coordinator.Key) (*v1alpha1.Gang, error) {
	g := &v1alpha1.Gang{}
	if err := from.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, g); err != nil {
		return nil, fmt.Errorf("reading gang %s/%s: %w", key.Namespace, key.Name, err)
	}
	if g.Spec.JobRef.UID != key.Job {
		return nil, fmt.Errorf("gang %s/%s belongs to job %s, not %s: %w", key.Namespace, key.Name, g.Spec.JobRef.UID, key.Job,
			apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("gangs").GroupResource(), key.Name))
	}
	return g, nil
}

// Persist applies status.run. The write succeeds only on the Gang's version that was read, and only over a record that this process
// wrote or read: a process that lost its lead without noticing can neither lower a generation nor undo a decision.
func (c *Controller) Persist(ctx context.Context, key coordinator.Key, r elastic.Record) error {
	for cached := true; ; cached = false {
		from := c.Live
		if cached {
			from = c.Client
		}
		g, err := c.gang(ctx, from, key)
		if err != nil {
			return err
		}
		switch may := c.writer.may(key, g.Status.Run); {
		case g.Status.Run != nil && g.Status.Run.Generation > r.Generation, !may && !cached:
			return fmt.Errorf("gang %s/%s has generation %d, written by another process; this process has %d: %w", g.Namespace, g.Name, g.Status.Run.Generation, r.Generation, ErrSuperseded)
		case !may:
			continue // the cache may be behind
		}
		err = c.apply(ctx, g, r)
		if err == nil {
			c.writer.wrote(key)
		}
		if !apierrors.IsConflict(err) {
			return err
		}
	}
}

func (c *Controller) apply(ctx context.Context, g *v1alpha1.Gang, r elastic.Record) error {
	status := runStatus(r)
	status.Writer = c.writer.next()
	run, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return fmt.Errorf("encoding the record of gang %s/%s: %w", g.Namespace, g.Name, err)
	}
	dropNulls(run)
	u := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"run": run}}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Gang"))
	u.SetNamespace(g.Namespace)
	u.SetName(g.Name)
	u.SetResourceVersion(g.ResourceVersion)
	err = c.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(FieldManager), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("writing generation %d of gang %s/%s: %w", r.Generation, g.Namespace, g.Name, err)
	}
	return nil
}

// dropNulls removes what the converter makes of empty structs: the API server refuses a null where the schema
// wants an object, and then no record would be stored any more.
func dropNulls(value any) {
	switch value := value.(type) {
	case map[string]any:
		for k, v := range value {
			if v == nil {
				delete(value, k)
			}
			dropNulls(v)
		}
	case []any:
		for _, v := range value {
			dropNulls(v)
		}
	}
}

// Announce writes an event on the gang's job and on the Gang.
func (c *Controller) Announce(ctx context.Context, key coordinator.Key, n elastic.Notice) {
	g, err := c.gang(ctx, c.Client, key)
	if err != nil {
		c.Log.Info("an event was dropped", "gang", key, "reason", n.Reason, "message", n.Message, "because", err.Error())
		return
	}
	kind := corev1.EventTypeNormal
	if n.Warning {
		kind = corev1.EventTypeWarning
	}
	c.emit(g, g, kind, n.Reason, "Restart", n.Message)
}

// emit writes an event on the gang's job, where its user looks, and on the Gang.
func (c *Controller) emit(g *v1alpha1.Gang, related runtime.Object, kind, reason, action, note string) {
	note = cause.Ends(note, noteLimit)
	c.Recorder.Eventf(jobOf(g), related, kind, reason, action, "%s", note)
	c.Recorder.Eventf(g, related, kind, reason, action, "%s", note)
}

// jobOf refers to the job that a Gang was made for.
func jobOf(g *v1alpha1.Gang) *corev1.ObjectReference {
	ref := g.Spec.JobRef
	return &corev1.ObjectReference{APIVersion: ref.APIVersion, Kind: ref.Kind, Namespace: g.Namespace, Name: ref.Name, UID: types.UID(ref.UID)}
}
