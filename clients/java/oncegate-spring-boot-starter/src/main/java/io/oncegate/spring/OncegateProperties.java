package io.oncegate.spring;

import io.oncegate.client.OnUnavailable;
import java.time.Duration;
import java.util.List;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * Properties {@code oncegate.*}.
 *
 * @param urls one or more gateways before the same store; by default {@code ONCEGATE_URL}
 * @param credential {@code <app_key>.<secret>}, where apps are configured
 * @param timeout limit of one HTTP call
 * @param claimWithin limit of all tries of one claim call
 * @param settleWithin limit of all tries of one report
 * @param onUnavailable the caller's own policy when no gateway answers
 * @param enabled false: all work runs, and nothing is claimed
 */
@ConfigurationProperties("oncegate")
public record OncegateProperties(
        List<String> urls,
        String credential,
        @DefaultValue("2s") Duration timeout,
        @DefaultValue("5s") Duration claimWithin,
        @DefaultValue("30s") Duration settleWithin,
        @DefaultValue("fail-closed") OnUnavailable onUnavailable,
        @DefaultValue("true") boolean enabled) {}
