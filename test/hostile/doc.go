// Package hostile tests on a real kubelet that a tenant with the rights of role edit in one namespace neither
// disturbs a job that trains in another one nor brings controller or scheduler down: each attack is refused with its
// reason, or its effect is bounded.
package hostile
