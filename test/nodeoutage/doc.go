// Package nodeoutage tests the node controller against a real API server. Verdicts of daemons and silent nodes become
// outages within the budget, whichever replica leads and however the API server fails meanwhile. Each outage can end.
// The test writes the Node objects and their leases itself; the controller is the real one, with the rights from the
// manifests. Other tests check that the controller's account can change only pods and Jobs of gangs.
package nodeoutage
