package io.oncegate.spring;

import io.oncegate.client.OncegateException;
import io.oncegate.client.http.Problem;
import org.springframework.core.annotation.Order;
import org.springframework.http.MediaType;
import org.springframework.http.ProblemDetail;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.ExceptionHandler;
import org.springframework.web.bind.annotation.RestControllerAdvice;

/**
 * Answers errors of the client and of {@link Once} with problem documents, before advices without
 * an order. Errors after the work, such as {@code NotSettled}, go on.
 */
@RestControllerAdvice
@Order(0)
public class OncegateErrors {
    /** Answers a method that was not run. */
    @ExceptionHandler(OnceRefused.class)
    public ResponseEntity<ProblemDetail> refused(OnceRefused refused) {
        return ResponseEntity.status(refused.getStatusCode())
                .headers(refused.getHeaders())
                .contentType(MediaType.APPLICATION_PROBLEM_JSON)
                .body(refused.getBody());
    }

    /** Answers an error of the client. */
    @ExceptionHandler(OncegateException.class)
    public ResponseEntity<ProblemDetail> failed(OncegateException failed) {
        Problem problem = Problem.of(failed);
        if (problem == null) {
            throw failed;
        }
        System.getLogger(OncegateErrors.class.getName())
                .log(System.Logger.Level.WARNING, "Nothing ran", failed);
        return ResponseEntity.status(problem.status())
                .headers(OnceRefused.headers(problem))
                .contentType(MediaType.APPLICATION_PROBLEM_JSON)
                .body(OnceRefused.detail(problem));
    }
}
