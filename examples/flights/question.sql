SELECT carrier,
       count(*) AS flights,
       round(avg(arr_delay)::numeric, 2) AS actual,
       round(avg(arrival_delay(distance, dep_delay, carrier, month, hour))::numeric, 2) AS predicted
FROM flights
WHERE arr_delay IS NOT NULL
GROUP BY carrier
ORDER BY carrier
