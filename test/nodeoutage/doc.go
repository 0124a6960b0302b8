// Package nodeoutage proves against a real API server what the node controller promises: verdicts and silence become
// outages within the budget, whoever leads and whatever the API server does meanwhile, and each has a way back. Its
// nodes are Node objects and leases that the test itself writes; the controller is the product's. And that the controller's
// account, with the rights that ship, reaches no pods and no Jobs but those of gangs.
package nodeoutage
