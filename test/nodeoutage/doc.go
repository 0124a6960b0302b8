// Package nodeoutage tests the node controller's promises against a real API server: verdicts and silence become
// outages within the budget, whichever replica leads and whatever the API server does meanwhile, and each can end.
// Its nodes are Node objects and leases that the test itself writes; the controller is the product's. It also tests
// that the controller's account, with the shipped rights, can change only pods and Jobs of gangs.
package nodeoutage
