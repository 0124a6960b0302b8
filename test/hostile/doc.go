// Package hostile tests attacks on a real kubelet. The attacker has the rights of Kubernetes' role edit in one
// namespace. The attacker can neither disturb a job that trains in another namespace nor crash the controller or the
// scheduler. Each attack is refused with a reason, or its effect is bounded.
package hostile
