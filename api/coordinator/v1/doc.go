// Package coordinatorv1 is the conversation of agent and coordinator, generated from coordinator.proto.
// It promises that every message states the whole present truth of its sender, and that numbers in it
// only rise, so that a message that is lost, doubled or late changes nothing.
package coordinatorv1
