// Package hostile tests, on a real kubelet, that a tenant with the rights of role edit in one namespace can neither disturb a job that
// trains in another namespace nor crash controller or scheduler: each attack is refused with its reason, or its effect is bounded.
package hostile
