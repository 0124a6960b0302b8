// Package coordinatorv1 is the conversation of one agent with the coordinator, generated from
// coordinator.proto. Both sides send levels, never commands: each message states the whole present truth of
// its sender, so that a lost, doubled or late one changes nothing.
package coordinatorv1
