//go:build !race

package roster

const racing = false
