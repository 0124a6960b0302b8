// Package coordinatorv1 has the messages between an agent and the coordinator, generated from coordinator.proto. A
// message states the whole present state of its sender. So a message that is lost, doubled or late changes nothing.
package coordinatorv1
