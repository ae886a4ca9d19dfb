package org.springframework.security;

/** Stands for an error of Spring Security, which the filters know by its package. */
public class Denied extends RuntimeException {
    private static final long serialVersionUID = 1;
}
