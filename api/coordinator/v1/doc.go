// Package coordinatorv1 has the messages between one agent and the coordinator, generated from coordinator.proto.
// Both sides send levels, never commands: each message states the whole present state of its sender, so that a lost,
// doubled or late message changes nothing.
package coordinatorv1
